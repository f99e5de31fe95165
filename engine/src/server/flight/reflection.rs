//! gRPC's reflection: what the services are, for tools that know none of them (`grpcurl`, Postman).
//!
//! `arrow-flight` keeps no descriptors of what it was generated from; they are made here, of the protocol as
//! it is published (Flight.proto of Arrow). Flight SQL's commands travel as bytes in it.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};
use tonic::service::Routes;
use tonic_reflection::server::Builder;

const PACKAGE: &str = "arrow.flight.protocol";
const TIME: &str = ".google.protobuf.Timestamp";

/// What a field holds.
enum Kind {
    One(Type),
    Many(Type),
    /// One that may be missing, though it is no message.
    Maybe(Type),
    /// A message of the package.
    Message(&'static str),
    Messages(&'static str),
    Enum(&'static str),
    Time,
}

use Kind::{Enum, Many, Maybe, Message, Messages, One, Time};
use Type::{Bool, Bytes, Double, Int32, Int64, String as Text, Uint64};

type Fields = &'static [(&'static str, i32, Kind)];

const MESSAGES: &[(&str, Fields)] = &[
    (
        "HandshakeRequest",
        &[
            ("protocol_version", 1, One(Uint64)),
            ("payload", 2, One(Bytes)),
        ],
    ),
    (
        "HandshakeResponse",
        &[
            ("protocol_version", 1, One(Uint64)),
            ("payload", 2, One(Bytes)),
        ],
    ),
    (
        "BasicAuth",
        &[("username", 2, One(Text)), ("password", 3, One(Text))],
    ),
    ("Empty", &[]),
    (
        "ActionType",
        &[("type", 1, One(Text)), ("description", 2, One(Text))],
    ),
    ("Criteria", &[("expression", 1, One(Bytes))]),
    ("Action", &[("type", 1, One(Text)), ("body", 2, One(Bytes))]),
    (
        "CancelFlightInfoRequest",
        &[("info", 1, Message("FlightInfo"))],
    ),
    (
        "RenewFlightEndpointRequest",
        &[("endpoint", 1, Message("FlightEndpoint"))],
    ),
    ("Result", &[("body", 1, One(Bytes))]),
    (
        "CancelFlightInfoResult",
        &[("status", 1, Enum("CancelStatus"))],
    ),
    ("SchemaResult", &[("schema", 1, One(Bytes))]),
    (
        "FlightDescriptor",
        &[
            ("type", 1, Enum("FlightDescriptor.DescriptorType")),
            ("cmd", 2, One(Bytes)),
            ("path", 3, Many(Text)),
        ],
    ),
    (
        "FlightInfo",
        &[
            ("schema", 1, One(Bytes)),
            ("flight_descriptor", 2, Message("FlightDescriptor")),
            ("endpoint", 3, Messages("FlightEndpoint")),
            ("total_records", 4, One(Int64)),
            ("total_bytes", 5, One(Int64)),
            ("ordered", 6, One(Bool)),
            ("app_metadata", 7, One(Bytes)),
        ],
    ),
    (
        "PollInfo",
        &[
            ("info", 1, Message("FlightInfo")),
            ("flight_descriptor", 2, Message("FlightDescriptor")),
            ("progress", 3, Maybe(Double)),
            ("expiration_time", 4, Time),
        ],
    ),
    (
        "FlightEndpoint",
        &[
            ("ticket", 1, Message("Ticket")),
            ("location", 2, Messages("Location")),
            ("expiration_time", 3, Time),
            ("app_metadata", 4, One(Bytes)),
        ],
    ),
    ("Location", &[("uri", 1, One(Text))]),
    ("Ticket", &[("ticket", 1, One(Bytes))]),
    (
        "FlightData",
        &[
            ("flight_descriptor", 1, Message("FlightDescriptor")),
            ("data_header", 2, One(Bytes)),
            ("app_metadata", 3, One(Bytes)),
            ("data_body", 1000, One(Bytes)),
        ],
    ),
    ("PutResult", &[("app_metadata", 1, One(Bytes))]),
];

/// Names of its values, from 0 on.
const CANCEL_STATUS: [&str; 4] = [
    "CANCEL_STATUS_UNSPECIFIED",
    "CANCEL_STATUS_CANCELLED",
    "CANCEL_STATUS_CANCELLING",
    "CANCEL_STATUS_NOT_CANCELLABLE",
];
const DESCRIPTOR_TYPE: [&str; 3] = ["UNKNOWN", "PATH", "CMD"];

/// Methods with what they take and give; `true`: a stream of it.
const METHODS: [(&str, &str, bool, &str, bool); 10] = [
    (
        "Handshake",
        "HandshakeRequest",
        true,
        "HandshakeResponse",
        true,
    ),
    ("ListFlights", "Criteria", false, "FlightInfo", true),
    (
        "GetFlightInfo",
        "FlightDescriptor",
        false,
        "FlightInfo",
        false,
    ),
    (
        "PollFlightInfo",
        "FlightDescriptor",
        false,
        "PollInfo",
        false,
    ),
    (
        "GetSchema",
        "FlightDescriptor",
        false,
        "SchemaResult",
        false,
    ),
    ("DoGet", "Ticket", false, "FlightData", true),
    ("DoPut", "FlightData", true, "PutResult", true),
    ("DoExchange", "FlightData", true, "FlightData", true),
    ("DoAction", "Action", false, "Result", true),
    ("ListActions", "Empty", false, "ActionType", true),
];

/// Adds what answers questions about the services, Flight, health and itself, in both of its versions, as
/// many tools know the first one alone.
///
/// # Errors
/// None, as long as the descriptors are whole, which a test sees to.
pub(in crate::server) fn with_reflection(
    routes: Routes,
) -> Result<Routes, tonic_reflection::server::Error> {
    let builder = || {
        Builder::configure()
            .register_file_descriptor_set(descriptors())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = routes.add_service(builder().build_v1()?);
    Ok(routes.add_service(builder().build_v1alpha()?))
}

fn full(name: &str) -> String {
    format!(".{PACKAGE}.{name}")
}

fn descriptors() -> FileDescriptorSet {
    let time = message(
        "Timestamp",
        &[("seconds", 1, One(Int64)), ("nanos", 2, One(Int32))],
    );
    let time = FileDescriptorProto {
        name: Some("google/protobuf/timestamp.proto".into()),
        package: Some("google.protobuf".into()),
        message_type: vec![time],
        syntax: Some("proto3".into()),
        ..Default::default()
    };
    let mut messages: Vec<_> = MESSAGES
        .iter()
        .map(|(name, fields)| message(name, fields))
        .collect();
    for message in &mut messages {
        if message.name() == "FlightDescriptor" {
            message.enum_type = vec![values("DescriptorType", &DESCRIPTOR_TYPE)];
        }
    }
    let methods = METHODS.map(
        |(name, input, many_in, output, many_out)| MethodDescriptorProto {
            name: Some(name.into()),
            input_type: Some(full(input)),
            output_type: Some(full(output)),
            client_streaming: Some(many_in),
            server_streaming: Some(many_out),
            ..Default::default()
        },
    );
    let flight = FileDescriptorProto {
        name: Some("Flight.proto".into()),
        package: Some(PACKAGE.into()),
        dependency: vec![time.name().into()],
        message_type: messages,
        enum_type: vec![values("CancelStatus", &CANCEL_STATUS)],
        service: vec![ServiceDescriptorProto {
            name: Some("FlightService".into()),
            method: methods.into(),
            ..Default::default()
        }],
        syntax: Some("proto3".into()),
        ..Default::default()
    };
    FileDescriptorSet {
        file: vec![time, flight],
    }
}

fn message(name: &str, fields: &[(&str, i32, Kind)]) -> DescriptorProto {
    let mut message = DescriptorProto {
        name: Some(name.into()),
        ..Default::default()
    };
    for (name, number, kind) in fields {
        let (of, label, type_name) = match kind {
            One(of) | Maybe(of) => (*of, Label::Optional, None),
            Many(of) => (*of, Label::Repeated, None),
            Message(of) => (Type::Message, Label::Optional, Some(full(of))),
            Messages(of) => (Type::Message, Label::Repeated, Some(full(of))),
            Enum(of) => (Type::Enum, Label::Optional, Some(full(of))),
            Time => (Type::Message, Label::Optional, Some(TIME.into())),
        };
        let mut field = FieldDescriptorProto {
            name: Some((*name).into()),
            number: Some(*number),
            type_name,
            ..Default::default()
        };
        field.set_type(of);
        field.set_label(label);
        if matches!(kind, Maybe(_)) {
            // As proto3 has it: alone in a oneof of its own.
            field.proto3_optional = Some(true);
            field.oneof_index = Some(message.oneof_decl.len() as i32);
            message.oneof_decl.push(prost_types::OneofDescriptorProto {
                name: Some(format!("_{name}")),
                ..Default::default()
            });
        }
        message.field.push(field);
    }
    message
}

fn values(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let value = |(number, name): (i32, &&str)| EnumValueDescriptorProto {
        name: Some((*name).into()),
        number: Some(number),
        options: None,
    };
    EnumDescriptorProto {
        name: Some(name.into()),
        value: (0..).zip(values).map(value).collect(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_are_whole() {
        assert!(with_reflection(Routes::default()).is_ok());
        let known = |name: &str| MESSAGES.iter().any(|(message, _)| *message == name);
        for (method, input, _, output, _) in METHODS {
            assert!(known(input) && known(output), "{method}");
        }
        for (message, fields) in MESSAGES {
            for (field, _, kind) in *fields {
                if let Message(of) | Messages(of) = kind {
                    assert!(known(of), "{message}.{field}");
                }
            }
        }
    }
}
