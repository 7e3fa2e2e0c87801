#!/usr/bin/env python3
"""Reads the tables of a folder with one engine and prints every row and what the queries of docs/operations/exporters.md answer, as JSON:
`engines.py duckdb|clickhouse|spark FOLDER`."""
import datetime
import decimal
import json
import os
import pathlib
import re
import sys

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations" / "exporters.md"
TABLES = ("metrics", "processes", "devices", "sites")
# The queries that the page has for every engine, by words of the text before them.
SAME = ["Peak memory", "Sites"]


def plain(value):
    """A value as every engine can tell it."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value)
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", value):
        return plain(datetime.datetime.fromisoformat(value))
    return value


def questions(language):
    """The page's queries in a language, by words of the paragraph before them."""
    text = PAGE.read_text()
    mark = "sql" if language == "duckdb" else f"sql {language}"
    found = {}
    for before, query in re.findall(rf"((?:[^\n]+\n)+)\n```{mark}\n(.*?)```", text, re.S):
        word = next((word for word in SAME if word in before), None)
        if word:
            found[word] = query.strip().rstrip(";")
    return found


def with_duckdb():
    import duckdb
    duckdb.sql("SET TimeZone = 'UTC'")

    def ask(query):
        answer = duckdb.sql(query)
        return [dict(zip(answer.columns, row)) for row in answer.fetchall()]
    return f"DuckDB {duckdb.__version__}", ask, lambda table: (
        f"SELECT * REPLACE (time AT TIME ZONE 'UTC' AS time) FROM read_parquet('lake/{table}/*/*/*.parquet', hive_partitioning = true)")


def with_clickhouse():
    import chdb

    def ask(query):
        more = "output_format_json_quote_64bit_integers = 0, output_format_json_quote_decimals = 0"
        text = str(chdb.query(f"{query} SETTINGS {more}", "JSONEachRow"))
        return [json.loads(line) for line in text.splitlines()]
    version = ask("SELECT version() AS version")[0]["version"]
    return f"ClickHouse {version}", ask, lambda table: f"SELECT * FROM file('lake/{table}/*/*/*.parquet')"


def with_spark():
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    for table in TABLES:
        spark.read.parquet(f"lake/{table}").createOrReplaceTempView(table)
    return f"Spark {spark.version}", lambda query: [row.asDict() for row in spark.sql(query).collect()], lambda table: f"SELECT * FROM {table}"


def main():
    engine, folder = sys.argv[1], sys.argv[2]
    os.environ["TZ"] = "UTC"
    os.chdir(os.path.dirname(folder))
    version, ask, whole = {"duckdb": with_duckdb, "clickhouse": with_clickhouse, "spark": with_spark}[engine]()
    rows = lambda query: [{name: plain(value) for name, value in row.items()} for row in ask(query)]  # noqa: E731
    ordered = lambda found: sorted(found, key=lambda row: json.dumps(row, sort_keys=True))  # noqa: E731
    tables = {table: ordered(rows(whole(table))) for table in TABLES}
    # Rows that are equal in what they are ordered by may come in any order.
    answers = {word: ordered(rows(query)) for word, query in questions(engine).items()}
    print(json.dumps({"version": version, "tables": tables, "questions": answers}, sort_keys=True))


main()
