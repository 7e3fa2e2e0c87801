"""Reads a pprof profile with Google's protocol buffers, from a hand-written description
of the format. Prints its content as JSON."""

import gzip
import json
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# name: (number, type, repeated); a type in words is a message.
MESSAGES = {
    "Profile": {
        "sample_type": (1, "ValueType", True),
        "sample": (2, "Sample", True),
        "mapping": (3, "Mapping", True),
        "location": (4, "Location", True),
        "function": (5, "Function", True),
        "string_table": (6, str, True),
        "default_sample_type": (14, int, False),
    },
    "ValueType": {"type": (1, int, False), "unit": (2, int, False)},
    "Sample": {"location_id": (1, "u", True), "value": (2, int, True), "label": (3, "Label", True)},
    "Label": {"key": (1, int, False), "str": (2, int, False), "num": (3, int, False)},
    "Mapping": {"id": (1, "u", False), "filename": (5, int, False)},
    "Location": {"id": (1, "u", False), "mapping_id": (2, "u", False), "line": (4, "Line", True)},
    "Line": {"function_id": (1, "u", False), "line": (2, int, False)},
    "Function": {"id": (1, "u", False), "name": (2, int, False), "system_name": (3, int, False), "filename": (4, int, False)},
}


def profile_class():
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="p", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    plain = {int: field.TYPE_INT64, "u": field.TYPE_UINT64, str: field.TYPE_STRING}
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for word, (number, kind, repeated) in fields.items():
            one = message.field.add(name=word, number=number)
            one.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in plain:
                one.type = plain[kind]
            else:
                one.type, one.type_name = field.TYPE_MESSAGE, f".p.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))


def main(path):
    with gzip.open(path) as file:
        profile = profile_class().FromString(file.read())
    text = profile.string_table
    assert text[0] == ""
    functions = {one.id: one for one in profile.function}
    # Go's pprof removes text in brackets from names that equal the system name.
    assert all(one.system_name != one.name for one in profile.function)
    mappings = {one.id: text[one.filename] for one in profile.mapping}
    locations = {one.id: one for one in profile.location}

    def frame(number):
        location = locations[number]
        (line,) = location.line
        function = functions[line.function_id]
        module = mappings[location.mapping_id] if location.mapping_id else ""
        return [text[function.name], text[function.filename], line.line, module]

    types = [[text[one.type], text[one.unit]] for one in profile.sample_type]
    totals = {name: 0 for name, _ in types}
    samples = []
    for sample in profile.sample:
        assert len(sample.value) == len(types)
        for (name, _), value in zip(types, sample.value):
            totals[name] += value
        # Go's pprof treats the number 0 as a missing label.
        assert all(one.str or one.num for one in sample.label)
        labels = {text[one.key]: text[one.str] if one.str else one.num for one in sample.label}
        stack = [frame(number) for number in sample.location_id]
        samples.append({"stack": stack, "values": list(sample.value), "labels": labels})
    default = text[profile.default_sample_type]
    print(json.dumps({"types": types, "totals": totals, "samples": samples, "default": default}))


main(sys.argv[1])
