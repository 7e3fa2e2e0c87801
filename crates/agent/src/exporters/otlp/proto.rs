//! Messages of OTLP metrics, by field numbers: only those that are sent, and the response.

formats::messages! {
    /// The export request.
    Request {
        resource_metrics("1", message, repeated): Vec<ResourceMetrics>,
    }

    /// Metrics of one resource.
    ResourceMetrics {
        resource("1", message, optional): Option<Resource>,
        scope_metrics("2", message, repeated): Vec<ScopeMetrics>,
    }

    /// The resource that is described: attributes of the agent.
    Resource {
        attributes("1", message, repeated): Vec<KeyValue>,
    }

    /// Metrics of one instrumentation scope.
    ScopeMetrics {
        scope("1", message, optional): Option<Scope>,
        metrics("2", message, repeated): Vec<Metric>,
    }

    /// An instrumentation scope.
    Scope {
        name("1", string): String,
        version("2", string): String,
    }

    /// Gauge values.
    Gauge {
        data_points("1", message, repeated): Vec<Point>,
    }

    /// Values that can be summed.
    Sum {
        data_points("1", message, repeated): Vec<Point>,
        aggregation_temporality("2", int32): i32,
        is_monotonic("3", bool): bool,
    }

    /// An attribute.
    KeyValue {
        key("1", string): String,
        value("2", message, optional): Option<AnyValue>,
    }

    /// The response.
    Response {
        partial_success("1", message, optional): Option<PartialSuccess>,
    }

    /// Data points that were rejected.
    PartialSuccess {
        rejected_data_points("1", int64): i64,
        error_message("2", string): String,
    }
}

/// A metric.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) description: String,
    #[prost(string, tag = "3")]
    pub(super) unit: String,
    #[prost(oneof = "Data", tags = "5, 7")]
    pub(super) data: Option<Data>,
}

/// Values of a metric.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
}

/// Sums count from their start, not from the previous export.
pub(super) const CUMULATIVE: i32 = 2;

/// One data point.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Point {
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(message, repeated, tag = "7")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(oneof = "Number", tags = "4, 6")]
    pub(super) value: Option<Number>,
}

/// A number.
#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub(super) enum Number {
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}

/// Value of an attribute.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 3")]
    pub(super) value: Option<Any>,
}

/// Supported kinds of values.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Any {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Int(i64),
}

impl KeyValue {
    pub(super) fn text(key: &str, text: &str) -> Self {
        let value = AnyValue { value: Some(Any::Text(text.to_owned())) };
        Self { key: key.to_owned(), value: Some(value) }
    }

    pub(super) fn int(key: &str, number: i64) -> Self {
        let value = AnyValue { value: Some(Any::Int(number)) };
        Self { key: key.to_owned(), value: Some(value) }
    }
}
