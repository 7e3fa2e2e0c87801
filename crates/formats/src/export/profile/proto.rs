//! Messages of a pprof profile, by field number. Text fields are indices into `string_table`, whose
//! first entry is empty.

messages! {
    /// A profile.
    Profile {
        sample_type("1", message, repeated): Vec<ValueType>,
        sample("2", message, repeated): Vec<Sample>,
        mapping("3", message, repeated): Vec<Mapping>,
        location("4", message, repeated): Vec<Location>,
        function("5", message, repeated): Vec<Function>,
        string_table("6", string, repeated): Vec<String>,
        time_nanos("9", int64): i64,
        duration_nanos("10", int64): i64,
        period_type("11", message, optional): Option<ValueType>,
        period("12", int64): i64,
        comment("13", int64, repeated): Vec<i64>,
        default_sample_type("14", int64): i64,
    }

    /// Type and unit of a value.
    ValueType {
        kind("1", int64): i64,
        unit("2", int64): i64,
    }

    /// A stack, innermost frame first, and its values.
    Sample {
        location_id("1", uint64, repeated): Vec<u64>,
        value("2", int64, repeated): Vec<i64>,
        label("3", message, repeated): Vec<Label>,
    }

    /// A label of a sample: text or number.
    Label {
        key("1", int64): i64,
        text("2", int64): i64,
        number("3", int64): i64,
    }

    /// A library or program.
    Mapping {
        id("1", uint64): u64,
        filename("5", int64): i64,
        has_functions("7", bool): bool,
        has_filenames("8", bool): bool,
        has_line_numbers("9", bool): bool,
    }

    /// A frame.
    Location {
        id("1", uint64): u64,
        mapping_id("2", uint64): u64,
        line("4", message, repeated): Vec<Line>,
    }

    /// A line of a function.
    Line {
        function_id("1", uint64): u64,
        line("2", int64): i64,
    }

    /// A function.
    Function {
        id("1", uint64): u64,
        name("2", int64): i64,
        filename("4", int64): i64,
    }
}
