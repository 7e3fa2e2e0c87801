-- The tables of all agents in ClickHouse. Run it before views.sql. Paths are relative to user_files_path of the server; for
-- a bucket replace file('lake/…') with s3('ADDRESS/…', 'KEY', 'SECRET'), or without keys if the server has them. Run it again
-- after an upgrade: views keep the columns of their start.
CREATE OR REPLACE VIEW gpus AS SELECT * FROM file('lake/gpus/*/*/*.parquet') SETTINGS schema_inference_mode = 'union';
CREATE OR REPLACE VIEW processes AS SELECT * FROM file('lake/processes/*/*/*.parquet') SETTINGS schema_inference_mode = 'union';
CREATE OR REPLACE VIEW devices AS SELECT * FROM file('lake/devices/*/*/*.parquet') SETTINGS schema_inference_mode = 'union';
CREATE OR REPLACE VIEW sites AS SELECT * FROM file('lake/sites/*/*/*.parquet') SETTINGS schema_inference_mode = 'union';
CREATE OR REPLACE VIEW suspects AS SELECT * FROM file('lake/suspects/*/*/*.parquet') SETTINGS schema_inference_mode = 'union';
CREATE OR REPLACE VIEW peaks AS SELECT * FROM file('lake/peaks/*/*/*.parquet') SETTINGS schema_inference_mode = 'union';
CREATE OR REPLACE VIEW incidents AS SELECT * FROM file('lake/incidents/*/*/*.parquet') SETTINGS schema_inference_mode = 'union';
