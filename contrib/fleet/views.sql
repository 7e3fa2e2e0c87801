-- Answers about all hosts, in the SQL that DuckDB, ClickHouse and Spark have in common. Run the file of the engine first.
--
-- Rows that were uploaded twice count once: every view reduces its rows to one per key first, or skips those with the time of
-- the row before. The latter needs one sort instead of a group for each sample.
-- Processes are identified by host, pid and start, so that a reused pid is another process. Times are those of the host. Durations come from the
-- steady clock of the agent (covers_seconds), so that steps of the system clock and hours without an agent add nothing.

-- Sites that leak, in any process on any host, with the last state of each process. Quantities are bytes, or numbers of
-- objects.
CREATE OR REPLACE VIEW leaks_by_site AS
WITH states AS (
    -- max_by of DuckDB and ClickHouse skips rows without a value: 0 is one.
    SELECT host, pid, process_start_ns, max(program) AS program_name, coalesce(max(fingerprint), site) AS site_key, resource,
           min(location) AS place_name, max_by(live, time) AS quantity, max_by(growth_per_hour, time) AS growth,
           max_by(coalesce(seconds_until_full + 1, 0), time) AS full_in, max(time) AS seen
    FROM suspects GROUP BY host, pid, process_start_ns, site, resource, kind, gpu
), in_process AS (
    SELECT host, pid, process_start_ns, program_name, site_key, resource, min(place_name) AS place_name,
           sum(quantity) AS quantity, sum(growth) AS growth, min(nullif(full_in, 0)) - 1 AS full_in, max(seen) AS seen
    FROM states GROUP BY host, pid, process_start_ns, program_name, site_key, resource
)
SELECT site_key AS fingerprint, resource, program_name AS program, min(place_name) AS location, count(DISTINCT host) AS hosts,
       count(*) AS processes, sum(quantity) AS live, sum(growth) AS growth_per_hour, min(full_in) AS seconds_until_full,
       max(seen) AS last_seen
FROM in_process
GROUP BY site_key, resource, program_name;

-- Peak memory of a program by release, against the release before it. Releases are ordered by the median of the first samples
-- of their processes, so that a host with a wrong clock does not change the order.
CREATE OR REPLACE VIEW growth_by_release AS
WITH runs AS (
    SELECT host, pid, process_start_ns, program, release, max(peak_bytes) AS peak, min(time) AS seen
    FROM peaks WHERE release IS NOT NULL
    GROUP BY host, pid, process_start_ns, program, release
), placed AS (
    SELECT program, release, peak, seen, row_number() OVER (PARTITION BY program, release ORDER BY seen) AS place,
           count(*) OVER (PARTITION BY program, release) AS places
    FROM runs
), releases AS (
    SELECT program, release, min(seen) AS first_seen, max(CASE WHEN 2 * place <= places + 1 THEN seen END) AS median_seen,
           count(*) AS processes, floor(sum(peak) / (count(*) * 1e0)) AS mean_peak_bytes, max(peak) AS max_peak_bytes
    FROM placed GROUP BY program, release
)
SELECT program, release, first_seen, median_seen, processes, mean_peak_bytes, max_peak_bytes,
       mean_peak_bytes - max(mean_peak_bytes) OVER (
           PARTITION BY program ORDER BY median_seen, release ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS growth_bytes
FROM releases;

-- The same for each site of a program: which line made the difference.
CREATE OR REPLACE VIEW site_growth_by_release AS
WITH runs AS (
    SELECT host, pid, process_start_ns, program, release, site, coalesce(fingerprint, site) AS site_key,
           min(location) AS place_name, max(peak_bytes) AS peak, min(time) AS seen
    FROM sites WHERE release IS NOT NULL
    GROUP BY host, pid, process_start_ns, program, release, site, coalesce(fingerprint, site)
), in_process AS (
    SELECT host, pid, process_start_ns, program, release, site_key, min(place_name) AS place_name, sum(peak) AS peak,
           min(seen) AS seen
    FROM runs GROUP BY host, pid, process_start_ns, program, release, site_key
), placed AS (
    SELECT program, release, site_key, place_name, peak, seen,
           row_number() OVER (PARTITION BY program, release, site_key ORDER BY seen) AS place,
           count(*) OVER (PARTITION BY program, release, site_key) AS places
    FROM in_process
), releases AS (
    SELECT program, release, site_key, min(place_name) AS location, min(seen) AS first_seen,
           max(CASE WHEN 2 * place <= places + 1 THEN seen END) AS median_seen, count(*) AS processes,
           floor(sum(peak) / (count(*) * 1e0)) AS mean_peak_bytes
    FROM placed GROUP BY program, release, site_key
)
SELECT program, release, site_key AS fingerprint, location, first_seen, median_seen, processes, mean_peak_bytes,
       mean_peak_bytes - max(mean_peak_bytes) OVER (
           PARTITION BY program, site_key ORDER BY median_seen, release ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS growth_bytes
FROM releases;

-- Peak memory of each job. The sum is an upper bound: its processes need not have their peaks at the same time.
CREATE OR REPLACE VIEW peak_by_job AS
WITH runs AS (
    SELECT host, pid, process_start_ns, job, program, max(peak_bytes) AS peak, min(time) AS seen, max(time) AS seen_last
    FROM peaks WHERE job IS NOT NULL
    GROUP BY host, pid, process_start_ns, job, program
)
SELECT job, program, count(DISTINCT host) AS hosts, count(*) AS processes, max(peak) AS max_process_peak_bytes,
       sum(peak) AS sum_of_peaks_bytes, min(seen) AS first_seen, max(seen_last) AS last_seen
FROM runs GROUP BY job, program;

-- Memory over time that pods hold and do not use, in GiB hours: in caches and pools (unused), and in processes that launched
-- no kernel since the previous sample (idle; null if launches are not counted). Processes without a pod have null.
CREATE OR REPLACE VIEW waste_by_pod AS
WITH samples AS (
    SELECT namespace, pod, program, time, covers_seconds / 1048576e0 AS weight, launches_total,
           live_bytes + coalesce(pool_unused_bytes, 0) AS held,
           coalesce(pool_unused_bytes, 0) + coalesce(greatest(cache_bytes, cache_used_bytes) - cache_used_bytes, 0) AS unused,
           max(time) OVER (PARTITION BY host, pid, process_start_ns ORDER BY time
                           ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS time_before,
           max(launches_total) OVER (PARTITION BY host, pid, process_start_ns ORDER BY time
                                     ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS launches_before
    FROM processes
)
SELECT namespace, pod, program,
       sum(floor(held * weight)) / 3686400e0 AS held_gib_hours,
       sum(floor(unused * weight)) / 3686400e0 AS unused_gib_hours,
       sum(CASE WHEN launches_total IS NULL THEN NULL WHEN launches_total = launches_before THEN floor(held * weight)
                ELSE 0e0 END) / 3686400e0 AS idle_gib_hours
FROM samples WHERE time_before IS NULL OR time_before <> time
GROUP BY namespace, pod, program;

-- GPUs whose memory grows, and when they will be full, by their last sample.
CREATE OR REPLACE VIEW hosts_full_soon AS
WITH ranked AS (
    SELECT host, gpu, uuid, name, total_bytes, used_bytes, growth_bytes_per_hour, seconds_until_full, processes, time,
           row_number() OVER (PARTITION BY host, gpu ORDER BY time DESC) AS place
    FROM gpus
)
SELECT host, gpu, uuid, name, total_bytes, used_bytes, growth_bytes_per_hour, seconds_until_full, processes, time AS last_seen
FROM ranked WHERE place = 1 AND seconds_until_full IS NOT NULL;

-- Incidents by trigger and diagnosed cause, with the last state of each.
CREATE OR REPLACE VIEW incidents_by_cause AS
WITH ranked AS (
    SELECT host, incident, incident_time, trigger, cause, recovered, errors, program,
           row_number() OVER (PARTITION BY host, incident ORDER BY time DESC) AS place
    FROM incidents
)
SELECT trigger, cause, count(*) AS incidents, sum(CASE WHEN recovered THEN 1 ELSE 0 END) AS recovered_incidents,
       sum(errors) AS total_errors, count(DISTINCT host) AS hosts, count(DISTINCT program) AS programs,
       min(incident_time) AS first_seen, max(incident_time) AS last_seen
FROM ranked WHERE place = 1
GROUP BY trigger, cause;

-- What a program used each day: memory over time, as the driver reports it or, without that, as traced; and the time of its
-- processes. Multiply with the price of a GiB hour: that of a GPU hour divided by the memory of the GPU.
CREATE OR REPLACE VIEW cost_by_program AS
WITH samples AS (
    SELECT date, host, pid, process_start_ns, program, time, covers_seconds, coalesce(used_bytes, live_bytes) AS held,
           max(time) OVER (PARTITION BY host, pid, process_start_ns ORDER BY time
                           ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS time_before
    FROM processes
), runs AS (
    SELECT date, host, pid, process_start_ns, program, sum(floor(held * covers_seconds / 1048576e0)) AS mib_seconds,
           sum(floor(covers_seconds * 1000e0)) AS milliseconds
    FROM samples WHERE time_before IS NULL OR time_before <> time
    GROUP BY date, host, pid, process_start_ns, program
)
SELECT date, program, count(DISTINCT host) AS hosts, count(*) AS processes, sum(mib_seconds) / 3686400e0 AS gib_hours,
       sum(milliseconds) / 3600000e0 AS process_hours
FROM runs GROUP BY date, program;

-- What the tables know of each host: sampled hours of each day, starts of its agent, and versions of the schema. Fewer hours
-- than expected are hours without an agent, or files that did not arrive.
CREATE OR REPLACE VIEW coverage_by_host AS
WITH samples AS (
    SELECT date, host, time, max(covers_seconds) AS seconds, max(agent_start) AS started, max(schema_version) AS version
    FROM gpus GROUP BY date, host, time
)
SELECT date, host, count(*) AS samples, sum(floor(seconds * 1000e0)) / 3600000e0 AS covered_hours,
       count(DISTINCT started) AS agent_starts, min(version) AS min_schema_version, max(version) AS max_schema_version,
       min(time) AS first_seen, max(time) AS last_seen
FROM samples GROUP BY date, host;
