// categories in which no article is any more go.
MATCH (c:Category) WHERE NOT EXISTS { MATCH (c)<-[:IN_CATEGORY]-(:Article) } DELETE c
