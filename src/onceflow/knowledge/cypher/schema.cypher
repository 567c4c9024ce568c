// the tables of the graph.
CREATE NODE TABLE Article(id INT64 PRIMARY KEY, title STRING, expansion_state STRING, expansion_depth INT64, claimed_at TIMESTAMP, processed_at TIMESTAMP, retry_count INT64, error STRING, same_as STRING, loaded BOOLEAN, generation INT64, page_id INT64, revision INT64, url STRING, aliases STRING[], links STRING[]);
CREATE NODE TABLE Section(id STRING PRIMARY KEY, title STRING, n INT64, level INT64, heading STRING, anchor STRING, text STRING);
CREATE NODE TABLE Category(name STRING PRIMARY KEY);
CREATE NODE TABLE Projection(one INT64 PRIMARY KEY, seq INT64);
CREATE REL TABLE LINKS_TO(FROM Article TO Article);
CREATE REL TABLE HAS_SECTION(FROM Article TO Section);
CREATE REL TABLE IN_CATEGORY(FROM Article TO Category)
