#!/usr/bin/env python3
"""Reads a directory of Parquet tables with one engine; prints every row and the results of documented queries as JSON.

usage: engines.py duckdb|clickhouse|spark DIR

The queries are those of docs/operations/exporters.md.
"""
import datetime
import decimal
import json
import os
import pathlib
import re
import sys

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations" / "exporters.md"
TABLES = ("metrics", "processes", "devices", "sites")
# Queries that the page has for every engine, by a word of the text before them.
QUERIES = ["Peak memory", "Sites"]


def normalized(value):
    """Returns a value in a form that is the same for all engines."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value)
    if isinstance(value, dict):
        return {name: normalized(one) for name, one in value.items()}
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", value):
        return normalized(datetime.datetime.fromisoformat(value))
    return value


def documented_queries(engine):
    """Returns the queries of the page for an engine, by a word of the paragraph before them."""
    text = PAGE.read_text()
    mark = "sql" if engine == "duckdb" else f"sql {engine}"
    found = {}
    for before, query in re.findall(rf"((?:[^\n]+\n)+)\n```{mark}\n(.*?)```", text, re.DOTALL):
        word = next((word for word in QUERIES if word in before), None)
        if word:
            found[word] = query.strip().rstrip(";")
    return found


def with_duckdb():
    import duckdb
    duckdb.sql("SET TimeZone = 'UTC'")

    def run_query(query):
        result = duckdb.sql(query)
        return [dict(zip(result.columns, row)) for row in result.fetchall()]
    return f"DuckDB {duckdb.__version__}", run_query, lambda table: (
        f"SELECT * REPLACE (time AT TIME ZONE 'UTC' AS time) FROM read_parquet('lake/{table}/*/*/*.parquet', hive_partitioning = true)")


def with_clickhouse():
    import chdb

    def run_query(query):
        more = "output_format_json_quote_64bit_integers = 0, output_format_json_quote_decimals = 0"
        text = str(chdb.query(f"{query} SETTINGS {more}", "JSONEachRow"))
        return [json.loads(line) for line in text.splitlines()]
    version = run_query("SELECT version() AS version")[0]["version"]
    return f"ClickHouse {version}", run_query, lambda table: f"SELECT * FROM file('lake/{table}/*/*/*.parquet')"


def with_spark():
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    for table in TABLES:
        spark.read.parquet(f"lake/{table}").createOrReplaceTempView(table)
    return f"Spark {spark.version}", lambda query: [row.asDict() for row in spark.sql(query).collect()], lambda table: f"SELECT * FROM {table}"


def main():
    engine, directory = sys.argv[1], sys.argv[2]
    os.environ["TZ"] = "UTC"
    os.chdir(os.path.dirname(directory))
    version, run_query, select_all = {"duckdb": with_duckdb, "clickhouse": with_clickhouse, "spark": with_spark}[engine]()
    rows = lambda query: [{name: normalized(value) for name, value in row.items()} for row in run_query(query)]
    ordered = lambda found: sorted(found, key=lambda row: json.dumps(row, sort_keys=True))
    tables = {table: ordered(rows(select_all(table))) for table in TABLES}
    # Rows with equal sort keys may come in any order.
    results = {word: ordered(rows(query)) for word, query in documented_queries(engine).items()}
    print(json.dumps({"version": version, "tables": tables, "queries": results}, sort_keys=True))


main()
