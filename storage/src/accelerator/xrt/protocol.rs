//! What the process of the database and the process of the runtime say to each other: commands one
//! way, replies the other, as Protocol Buffers, one message a packet.

/// A command to the runtime's process.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Command {
    #[prost(oneof = "Order", tags = "1, 2, 3, 4, 5")]
    pub order: Option<Order>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Order {
    /// Counts the devices that there are.
    #[prost(message, tag = "1")]
    Probe(Probe),
    /// Opens a device and loads a container; the first command but for `Probe`.
    #[prost(message, tag = "2")]
    Open(Open),
    /// Makes a buffer of the shared memory that comes with it. Has no reply: a call that uses a
    /// buffer that could not be made is refused.
    #[prost(message, tag = "3")]
    Allocate(Allocate),
    /// Gives a buffer back. No call uses it.
    #[prost(message, tag = "4")]
    Free(Free),
    /// Calls a function.
    #[prost(message, tag = "5")]
    Call(Call),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Probe {
    /// XRT's library.
    #[prost(string, tag = "1")]
    pub library: String,
    #[prost(bool, tag = "2")]
    pub is_emulation: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Open {
    #[prost(string, tag = "1")]
    pub library: String,
    #[prost(uint32, tag = "2")]
    pub device: u32,
    #[prost(string, tag = "3")]
    pub container: String,
    #[prost(message, repeated, tag = "4")]
    pub functions: Vec<Function>,
    /// Longest time of one run.
    #[prost(uint32, tag = "5")]
    pub run_timeout_ms: u32,
    #[prost(bool, tag = "6")]
    pub is_emulation: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Function {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint32, tag = "2")]
    pub compute_units: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Allocate {
    #[prost(uint64, tag = "1")]
    pub buffer: u64,
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// The function and the argument whose bank it lies in.
    #[prost(uint32, tag = "3")]
    pub function: u32,
    #[prost(uint32, tag = "4")]
    pub argument: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Free {
    #[prost(uint64, tag = "1")]
    pub buffer: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Call {
    #[prost(uint64, tag = "1")]
    pub call: u64,
    /// Its place in `Open.functions`.
    #[prost(uint32, tag = "2")]
    pub function: u32,
    #[prost(message, repeated, tag = "3")]
    pub arguments: Vec<Value>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Value {
    #[prost(oneof = "Passed", tags = "1, 2, 3")]
    pub passed: Option<Passed>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Passed {
    #[prost(uint64, tag = "1")]
    Integer(u64),
    #[prost(double, tag = "2")]
    Real(f64),
    #[prost(message, tag = "3")]
    Array(Array),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Array {
    #[prost(uint64, tag = "1")]
    pub buffer: u64,
    #[prost(uint64, tag = "2")]
    pub bytes_to_device: u64,
    #[prost(uint64, tag = "3")]
    pub bytes_from_device: u64,
}

/// A reply of the runtime's process.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Reply {
    #[prost(oneof = "Outcome", tags = "1, 2, 3")]
    pub outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Outcome {
    #[prost(message, tag = "1")]
    Probed(Probed),
    #[prost(message, tag = "2")]
    Opened(Opened),
    #[prost(message, tag = "3")]
    Done(Done),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Probed {
    #[prost(uint32, tag = "1")]
    pub devices: u32,
    /// Empty, or why none can be used.
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Opened {
    /// Empty, or why the device can't be used.
    #[prost(string, tag = "1")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Done {
    #[prost(uint64, tag = "1")]
    pub call: u64,
    /// Empty, or what went wrong.
    #[prost(string, tag = "2")]
    pub error: String,
    /// The call was not begun, and the device is as it was. After any other error it is not used
    /// any more.
    #[prost(bool, tag = "3")]
    pub is_refused: bool,
}
