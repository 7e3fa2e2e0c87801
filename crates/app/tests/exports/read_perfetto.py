#!/usr/bin/env python3
"""Reads a trace with Perfetto's own messages, checks its consistency, and prints its counters and slices."""

import json
import re
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

trace = messages.Trace()
with open(sys.argv[1], "rb") as file:
    trace.ParseFromString(file.read())

tracks, values, slices, texts = {}, {}, {}, []
interned, cleared = {}, set()
clocks = []
for packet in trace.packet:
    sequence = packet.trusted_packet_sequence_id
    assert sequence > 0
    if packet.sequence_flags & 1:
        interned[sequence] = {"name": {}, "key": {}, "text": {}}
        cleared.add(sequence)
    data = packet.interned_data
    for table, entries, field in (
        ("name", data.event_names, "name"),
        ("key", data.debug_annotation_names, "name"),
        ("text", data.debug_annotation_string_values, "str"),
    ):
        for entry in entries:
            value = getattr(entry, field)
            interned[sequence][table][entry.iid] = value.decode() if isinstance(value, bytes) else value
    if packet.HasField("clock_snapshot"):
        clocks.append({clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks})
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid and track.uuid not in tracks, "a track is described twice"
        assert not track.parent_uuid or track.parent_uuid in tracks, "the parent must come first"
        tracks[track.uuid] = track
        texts += [track.name, track.process.process_name]
    if packet.HasField("track_event"):
        event = packet.track_event
        track = tracks[event.track_uuid]
        if event.type == messages.TrackEvent.TYPE_COUNTER:
            assert track.counter.unit == messages.CounterDescriptor.UNIT_SIZE_BYTES
            values.setdefault(track.uuid, []).append((packet.timestamp, event.counter_value))
        elif event.type == messages.TrackEvent.TYPE_SLICE_BEGIN:
            assert packet.sequence_flags & 2 and sequence in cleared
            known = interned[sequence]
            about = {"name": known["name"][event.name_iid]}
            for note in event.debug_annotations:
                value = note.WhichOneof("value")
                value = known["text"][note.string_value_iid] if value == "string_value_iid" else getattr(note, value)
                about[known["key"][note.name_iid]] = value
            texts += [text for text in about.values() if isinstance(text, str)]
            slices.setdefault(track.uuid, []).append((packet.timestamp, about))
        else:
            assert event.type == messages.TrackEvent.TYPE_SLICE_END
            slices.setdefault(track.uuid, []).append((packet.timestamp, None))

series, totals = [], []
for uuid, points in values.items():
    assert points == sorted(points, key=lambda point: point[0]), "counters are not in time order"
    track = tracks[uuid]
    location, kind = re.fullmatch(r"(gpu_\d+|gpu_\?|host) (\w+)", track.name).groups()
    device = int(location[4:]) if location[4:].isdigit() else None
    values = {"device": device, "last": points[-1][1], "peak": max(value for _, value in points), "points": len(points)}
    if track.parent_uuid:
        pid = tracks[track.parent_uuid].process.pid
        series.append({**values, "pid": pid, "kind": kind})
    else:
        assert kind == "total"
        totals.append(values)

shown = []
for uuid, events in slices.items():
    # The viewer sorts by time and keeps the file order for equal times.
    open_slice = None
    for at, about in sorted(events, key=lambda event: event[0]):
        assert (about is None) == (open_slice is not None), "slices of a row overlap"
        if about is None:
            shown.append({**open_slice[1], "nanos": at - open_slice[0]})
            open_slice = None
        else:
            open_slice = (at, about)
    if open_slice:
        shown.append({**open_slice[1], "nanos": None})

json.dump({"series": series, "totals": totals, "slices": shown, "clocks": clocks, "texts": texts}, sys.stdout)
