-- The tables of all agents in Spark. Run it before views.sql, in the directory that has `lake`, or replace `lake/ with the
-- address of a bucket: sed 's|`lake/|`s3a://BUCKET/|'.
SET spark.sql.session.timeZone = UTC;
SET spark.sql.parquet.mergeSchema = true;
-- Every directory is listed by a task of its own, and every group has 200 partitions, unless there are fewer. Raise both on a
-- cluster.
SET spark.sql.sources.parallelPartitionDiscovery.parallelism = 16;
SET spark.sql.shuffle.partitions = 16;
CREATE OR REPLACE VIEW gpus AS SELECT * FROM parquet.`lake/gpus`;
CREATE OR REPLACE VIEW processes AS SELECT * FROM parquet.`lake/processes`;
CREATE OR REPLACE VIEW devices AS SELECT * FROM parquet.`lake/devices`;
CREATE OR REPLACE VIEW sites AS SELECT * FROM parquet.`lake/sites`;
CREATE OR REPLACE VIEW suspects AS SELECT * FROM parquet.`lake/suspects`;
CREATE OR REPLACE VIEW peaks AS SELECT * FROM parquet.`lake/peaks`;
CREATE OR REPLACE VIEW incidents AS SELECT * FROM parquet.`lake/incidents`;
