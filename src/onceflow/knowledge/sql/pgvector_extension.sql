-- bring in the extension, where the server has it and lets us.
CREATE EXTENSION IF NOT EXISTS vector
