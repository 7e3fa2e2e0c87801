#!/usr/bin/env python3
"""Reads an OTLP request with the messages that OpenTelemetry publishes, and prints it as JSON. Unknown
fields are errors."""

import gzip
import json
import sys

from google.protobuf import unknown_fields
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE


def known(message):
    assert len(unknown_fields.UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                known(one)


def attributes(pairs):
    found = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
    assert len(found) == len(pairs), "duplicate attribute"
    return found


with open(sys.argv[1], "rb") as file:
    body = file.read()
if sys.argv[2] == "gzip":
    body = gzip.decompress(body)
request = ExportMetricsServiceRequest.FromString(body)
known(request)
(resource,) = request.resource_metrics
(scope,) = resource.scope_metrics
metrics = {}
for metric in scope.metrics:
    form = metric.WhichOneof("data")
    data = getattr(metric, form)
    if form == "sum":
        assert data.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        form = "count" if data.is_monotonic else "level"
    points = []
    for point in data.data_points:
        assert point.time_unix_nano > 0 and (form == "gauge" or 0 < point.start_time_unix_nano <= point.time_unix_nano)
        value = getattr(point, point.WhichOneof("value"))
        points.append({"attributes": attributes(point.attributes), "value": value, "time": point.time_unix_nano})
    keys = [json.dumps(point["attributes"], sort_keys=True) for point in points]
    assert len(set(keys)) == len(keys), "two points have equal attributes"
    assert metric.name not in metrics
    metrics[metric.name] = {"form": form, "unit": metric.unit, "points": points}
json.dump({"resource": attributes(resource.resource.attributes), "scope": scope.scope.name, "metrics": metrics}, sys.stdout)
