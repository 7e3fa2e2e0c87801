-- The tables of all agents in DuckDB. Run it before views.sql, in the directory that has `lake`, or replace 'lake/
-- with the address of a bucket: sed "s|'lake/|'s3://BUCKET/|". docs/operations/fleet.md explains the columns.
SET TimeZone = 'UTC';
CREATE OR REPLACE VIEW gpus AS SELECT * FROM read_parquet('lake/gpus/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW processes AS SELECT * FROM read_parquet('lake/processes/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW devices AS SELECT * FROM read_parquet('lake/devices/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW sites AS SELECT * FROM read_parquet('lake/sites/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW suspects AS SELECT * FROM read_parquet('lake/suspects/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW peaks AS SELECT * FROM read_parquet('lake/peaks/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW incidents AS SELECT * FROM read_parquet('lake/incidents/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
