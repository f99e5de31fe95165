//! The manifest of a kernel, `kernel.toml`: read strictly, as it comes from users.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use toml::{Table, Value};

use self::keys::Keys;
use super::functions::{self, CArgument, CFunction, Extent};
use super::interface::{
    ArgumentInterface, ArgumentUse, ElementType, FunctionInterface, KernelInterface,
};
use super::signature::Signature;
use crate::{Result, StorageError};

mod keys;
mod stream;

pub use self::stream::{Port, StreamArgument, StreamTop};

/// Bytes of a manifest at most.
pub const MAX_MANIFEST_BYTES: usize = 64 << 10;

/// What a kernel computes, and so how its C functions look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One value a row.
    Scalar,
    /// TRUE or FALSE a row, given as a bitmap.
    Filter,
    /// One value a group of rows.
    Aggregate,
    /// How far each row's vector is from one vector.
    Distance,
    /// Where a pattern begins in each row's text.
    Search,
    /// Rows from a column's pages.
    Table,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Scalar,
        Self::Filter,
        Self::Aggregate,
        Self::Distance,
        Self::Search,
        Self::Table,
    ];

    /// Its word in a manifest, and its text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Filter => "filter",
            Self::Aggregate => "aggregate",
            Self::Distance => "distance",
            Self::Search => "search",
            Self::Table => "table",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What happens to rows with a NULL argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nulls {
    /// They are not computed and give NULL.
    Strict,
    /// The kernel gets and gives validity bitmaps.
    Kernel,
}

/// What a kernel asks to use; the operator's limits decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows of one call, a multiple of 64.
    pub rows_per_call: usize,
    /// Bytes of text of one call.
    pub bytes_per_call: usize,
    /// Linear memory of one instance.
    pub memory_bytes: usize,
    /// Longest time of one call.
    pub time_per_call: Duration,
}

/// How a device should run the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fpga {
    /// Copies of the kernel.
    pub compute_units: u32,
    /// Clock asked of the tools: an intent.
    pub clock_mhz: u32,
    /// Memory bank of each argument that is not in `DDR[0]`.
    pub banks: BTreeMap<String, String>,
}

/// What the author expects of the hardware: intents, not measurements.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Intent {
    /// Cycles between rows (or beats).
    pub initiation_interval: Option<u32>,
    /// Bytes consumed in a cycle.
    pub bytes_per_cycle: Option<f64>,
}

/// What a kernel has to equal.
#[derive(Debug, Clone, PartialEq)]
pub struct Test {
    /// An SQL expression over the parameters.
    pub reference: String,
    /// How far floats may be apart, as a share of the greater one.
    pub tolerance: f64,
}

/// A kernel's manifest. All that is said in docs/kernels.md holds of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The SQL name.
    pub name: String,
    /// What it computes.
    pub kind: Kind,
    /// Three numbers with points.
    pub version: String,
    /// One line.
    pub description: String,
    /// Parameters and result; `None` for kernels with `[[argument]]`.
    pub signature: Option<Signature>,
    /// The C function; of aggregates, what the four names begin with.
    pub top: String,
    /// Files to compile, relative to the manifest.
    pub sources: Vec<String>,
    /// What happens to NULL.
    pub nulls: Nulls,
    /// Aggregates: 64-bit words of one group's state; else 0.
    pub state_words: u32,
    /// The operation of a Program that the kernel implements on a device.
    pub operation: Option<String>,
    /// What it asks to use.
    pub limits: Limits,
    /// Other kernels that it may call.
    pub calls: Vec<String>,
    /// How a device should run it.
    pub fpga: Fpga,
    /// What its author expects of the hardware.
    pub intent: Intent,
    /// What `flashmesh kernel test` compares it with.
    pub test: Option<Test>,
    /// What a slot on a card calls, if the kernel has such a form.
    pub stream: Option<StreamTop>,
    functions: Vec<CFunction>,
}

impl Manifest {
    /// Reads the text of `kernel.toml`.
    ///
    /// # Errors
    /// `Invalid` that names the key and says what to write.
    pub fn parse(text: &str) -> Result<Self> {
        parse(text).map_err(|reason| StorageError::Invalid(format!("kernel.toml: {reason}")))
    }

    /// The C functions, each with its arguments in order: one, or init, update, merge and finish
    /// of an aggregate.
    pub fn functions(&self) -> &[CFunction] {
        &self.functions
    }

    /// The C functions as a device sees them, with memory banks and compute units.
    pub fn interface(&self) -> KernelInterface {
        let bank = |name: &str| self.fpga.banks.get(name).map_or("DDR[0]", String::as_str);
        let argument = |argument: &CArgument| ArgumentInterface {
            name: argument.name.clone(),
            usage: argument.usage,
            element: argument.element,
            bank: bank(&argument.name).to_owned(),
        };
        let function = |function: &CFunction| FunctionInterface {
            name: function.name.clone(),
            arguments: function.arguments.iter().map(argument).collect(),
        };
        KernelInterface {
            name: self.name.clone(),
            compute_units: self.fpga.compute_units,
            functions: self.functions.iter().map(function).collect(),
        }
    }
}

/// Whether it can be the name of a kernel or of a parameter: a lower-case letter, then lower-case
/// letters, digits and `_`, 63 at most.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn parse(text: &str) -> Result<Manifest, String> {
    if text.len() > MAX_MANIFEST_BYTES {
        return Err(format!(
            "{} bytes; a manifest has {MAX_MANIFEST_BYTES} at most",
            text.len()
        ));
    }
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| not_toml(text, &error))?;
    let mut root = Keys::new("", table);
    let mut kernel = root
        .table("kernel")?
        .ok_or("[kernel] is missing; write it with name, kind, version and signature")?;
    let name = kernel.name("name")?.ok_or("kernel.name is missing")?;
    let kind = kind(&mut kernel)?;
    let version = version(&mut kernel)?;
    let description = kernel.line("description", 1024)?.unwrap_or_default();
    let signature = match kernel.string("signature")? {
        Some(text) => {
            let signature =
                Signature::parse(&text).map_err(|error| format!("kernel.signature {error}"))?;
            signature
                .check(kind)
                .map_err(|error| format!("kernel.signature {error}"))?;
            Some(signature)
        }
        None => None,
    };
    let top = match kernel.string("top")? {
        Some(top) if is_c_identifier(&top) => top,
        Some(top) => {
            return Err(format!(
                "kernel.top is {top:?}; write the name of a C function"
            ));
        }
        None => name.clone(),
    };
    let sources = sources(&mut kernel)?;
    let nulls = nulls(&mut kernel, kind)?;
    let state_words = state_words(&mut kernel, kind, signature.is_some())?;
    let operation = kernel.line("operation", 63)?;
    kernel.finish()?;

    let limits = limits(root.table("limits")?)?;
    let calls = calls(root.table("calls")?, &name)?;
    let listed = listed_arguments(root.take("argument"))?;
    let functions = match (&signature, listed) {
        (Some(signature), None) => {
            let kernel_nulls = nulls == Nulls::Kernel;
            functions::of_signature(kind, &top, signature, kernel_nulls, state_words)
        }
        (None, Some(arguments)) => vec![CFunction {
            name: top.clone(),
            arguments,
        }],
        (Some(_), Some(_)) => {
            return Err("has both kernel.signature and [[argument]]; write one of them".to_owned());
        }
        (None, None) => {
            return Err(
                "kernel.signature is missing; write it as in SQL: (x DOUBLE) RETURNS DOUBLE"
                    .to_owned(),
            );
        }
    };
    no_argument_twice(&functions)?;
    let fpga = fpga(root.table("fpga")?, &functions)?;
    let intent = intent(root.table("intent")?)?;
    let test = test(root.table("test")?)?;
    let stream = stream::stream_top(root.table("stream")?)?;
    root.finish()?;
    Ok(Manifest {
        name,
        kind,
        version,
        description,
        signature,
        top,
        sources,
        nulls,
        state_words,
        operation,
        limits,
        calls,
        fpga,
        intent,
        test,
        stream,
        functions,
    })
}

/// The parser's word on one line with the line's number.
fn not_toml(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace(['\n', '\r'], " ");
    let message: String = message.chars().take(200).collect();
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.lines().count().max(1)),
        None => message,
    }
}

fn kind(kernel: &mut Keys) -> Result<Kind, String> {
    let word = kernel.string("kind")?.ok_or("kernel.kind is missing")?;
    Kind::ALL
        .into_iter()
        .find(|kind| kind.name() == word)
        .ok_or_else(|| {
            format!(
                "kernel.kind is {word:?}; write \"scalar\", \"filter\", \"aggregate\", \
                 \"distance\", \"search\" or \"table\""
            )
        })
}

fn version(kernel: &mut Keys) -> Result<String, String> {
    let version = kernel.string("version")?;
    let version = version.ok_or("kernel.version is missing; write \"1.0.0\"")?;
    let numbers: Vec<&str> = version.split('.').collect();
    let is_number =
        |n: &&str| (1..=9).contains(&n.len()) && n.bytes().all(|byte| byte.is_ascii_digit());
    if numbers.len() == 3 && numbers.iter().all(is_number) {
        return Ok(version);
    }
    Err(format!(
        "kernel.version is {version:?}; write three numbers with points, as in \"1.0.0\""
    ))
}

fn sources(kernel: &mut Keys) -> Result<Vec<String>, String> {
    let Some(sources) = kernel.strings("sources", 64)? else {
        return Ok(vec!["kernel.cpp".to_owned()]);
    };
    for source in &sources {
        let plain = |part: &str| {
            !part.is_empty()
                && part != "."
                && part != ".."
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-+".contains(c))
        };
        if source.len() > 255 || !source.split('/').all(plain) {
            return Err(format!(
                "kernel.sources has {source:?}; write a path below the manifest's folder of \
                 letters, digits, '.', '_', '-' and '/'"
            ));
        }
    }
    if sources.is_empty() {
        return Err("kernel.sources is empty; name the files to compile".to_owned());
    }
    Ok(sources)
}

fn nulls(kernel: &mut Keys, kind: Kind) -> Result<Nulls, String> {
    match kernel.string("nulls")?.as_deref() {
        None | Some("strict") => Ok(Nulls::Strict),
        Some("kernel") if matches!(kind, Kind::Distance | Kind::Table) => Err(format!(
            "kernel.nulls is \"kernel\", which kernels of kind {:?} can't have; leave it out",
            kind.name()
        )),
        Some("kernel") => Ok(Nulls::Kernel),
        Some(other) => Err(format!(
            "kernel.nulls is {other:?}; write \"strict\" or \"kernel\""
        )),
    }
}

fn state_words(kernel: &mut Keys, kind: Kind, has_signature: bool) -> Result<u32, String> {
    let words = kernel.number("state_words", 1..=8192)?;
    // An aggregate whose C arguments are listed has states of its own, if any.
    match (kind == Kind::Aggregate && has_signature, words) {
        (true, Some(words)) => Ok(words as u32),
        (true, None) => Err(
            "kernel.state_words is missing; write how many 64-bit words one group's state has"
                .to_owned(),
        ),
        (false, Some(_)) => Err(
            "kernel.state_words is for aggregates only, those with a signature; leave it out"
                .to_owned(),
        ),
        (false, None) => Ok(0),
    }
}

fn limits(keys: Option<Keys>) -> Result<Limits, String> {
    let mut keys = keys.unwrap_or_else(|| Keys::new("limits.", Table::new()));
    let rows = keys.number("rows_per_call", 64..=65_536)?.unwrap_or(8192);
    if rows % 64 != 0 {
        return Err(format!(
            "limits.rows_per_call is {rows}; write a multiple of 64"
        ));
    }
    let bytes = keys.number("bytes_per_call", 1024..=64 << 20)?;
    let memory = keys.number("memory_bytes", 64 << 10..=1 << 30)?;
    let time = keys.number("time_per_call_ms", 1..=60_000)?;
    keys.finish()?;
    Ok(Limits {
        rows_per_call: rows as usize,
        bytes_per_call: bytes.unwrap_or(1 << 20) as usize,
        memory_bytes: memory.unwrap_or(16 << 20) as usize,
        time_per_call: Duration::from_millis(time.unwrap_or(500)),
    })
}

fn calls(keys: Option<Keys>, own_name: &str) -> Result<Vec<String>, String> {
    let Some(mut keys) = keys else {
        return Ok(Vec::new());
    };
    let names = keys.strings("kernels", 16)?.unwrap_or_default();
    keys.finish()?;
    for (i, name) in names.iter().enumerate() {
        if !is_name(name) {
            return Err(format!("calls.kernels has {name:?}; write a kernel's name"));
        }
        if name == own_name || names[..i].contains(name) {
            return Err(format!(
                "calls.kernels has '{name}' twice, or is the kernel itself; leave it out"
            ));
        }
    }
    Ok(names)
}

fn test(keys: Option<Keys>) -> Result<Option<Test>, String> {
    let Some(mut keys) = keys else {
        return Ok(None);
    };
    let reference = keys.line("reference", 4096)?;
    let reference = reference
        .ok_or("test.reference is missing; write an SQL expression over the parameters")?;
    let tolerance = match keys.take("tolerance") {
        None => 0.0,
        Some(Value::Integer(0)) => 0.0,
        Some(Value::Float(share)) if (0.0..=1.0).contains(&share) => share,
        Some(_) => return Err("test.tolerance has to be a number from 0 to 1".to_owned()),
    };
    keys.finish()?;
    Ok(Some(Test {
        reference,
        tolerance,
    }))
}

fn fpga(keys: Option<Keys>, functions: &[CFunction]) -> Result<Fpga, String> {
    let mut keys = keys.unwrap_or_else(|| Keys::new("fpga.", Table::new()));
    let compute_units = keys.number("compute_units", 1..=64)?.unwrap_or(1);
    let clock_mhz = keys.number("clock_mhz", 50..=1000)?.unwrap_or(300);
    let mut banks = BTreeMap::new();
    if let Some(mut table) = keys.table("banks")? {
        for (argument, _) in table.keys() {
            let bank = table.string(&argument)?.unwrap_or_default();
            let mut arguments = functions.iter().flat_map(|f| &f.arguments);
            if !arguments.any(|a| a.name == argument && a.usage != ArgumentUse::Scalar) {
                return Err(format!(
                    "fpga.banks names {argument:?}, which is no array among the C arguments"
                ));
            }
            if !is_bank(&bank) {
                return Err(format!(
                    "fpga.banks.{argument} is {bank:?}; write a bank as in \"DDR[0]\", \"HBM[3]\" \
                     or \"HOST[0]\""
                ));
            }
            banks.insert(argument, bank);
        }
    }
    keys.finish()?;
    Ok(Fpga {
        compute_units: compute_units as u32,
        clock_mhz: clock_mhz as u32,
        banks,
    })
}

fn is_bank(bank: &str) -> bool {
    let number = ["DDR[", "HBM[", "HOST[", "PLRAM["]
        .iter()
        .find_map(|prefix| bank.strip_prefix(prefix))
        .and_then(|rest| rest.strip_suffix(']'));
    number.is_some_and(|n| (1..=2).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_digit()))
}

fn intent(keys: Option<Keys>) -> Result<Intent, String> {
    let Some(mut keys) = keys else {
        return Ok(Intent::default());
    };
    let initiation_interval = keys.number("initiation_interval", 1..=1024)?;
    let bytes_per_cycle = match keys.take("bytes_per_cycle") {
        None => None,
        Some(Value::Integer(bytes)) if (1..=4096).contains(&bytes) => Some(bytes as f64),
        Some(Value::Float(bytes)) if bytes > 0.0 && bytes <= 4096.0 => Some(bytes),
        Some(_) => {
            return Err(
                "intent.bytes_per_cycle has to be a number above 0 and up to 4096".to_owned(),
            );
        }
    };
    keys.finish()?;
    Ok(Intent {
        initiation_interval: initiation_interval.map(|cycles| cycles as u32),
        bytes_per_cycle,
    })
}

fn listed_arguments(value: Option<Value>) -> Result<Option<Vec<CArgument>>, String> {
    let wrong =
        || "write each argument as a table: [[argument]] with name, type and use".to_owned();
    let items = match value {
        None => return Ok(None),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(wrong()),
    };
    if items.is_empty() || items.len() > 64 {
        return Err(format!(
            "has {} times [[argument]]; write 1 to 64",
            items.len()
        ));
    }
    let mut arguments = Vec::new();
    for item in items {
        let Value::Table(table) = item else {
            return Err(wrong());
        };
        let mut keys = Keys::new("argument.", table);
        let name = keys.string("name")?.ok_or("argument.name is missing")?;
        if !is_c_identifier(&name) {
            return Err(format!("argument.name is {name:?}; write a C identifier"));
        }
        let word = keys.string("type")?.unwrap_or_default();
        let element = element(&word).ok_or_else(|| {
            format!("argument.type is {word:?}; write u8, i16, i32, u32, i64, u64, f32 or f64")
        })?;
        let word = keys.string("use")?.unwrap_or_default();
        if word == "stream" {
            return Err(format!(
                "the host passes arrays, and '{name}' is a stream; list it as [[stream.argument]]"
            ));
        }
        let usage = usage(&word)
            .ok_or_else(|| format!("argument.use is {word:?}; write scalar, in, out or inout"))?;
        keys.finish()?;
        arguments.push(CArgument {
            name,
            element,
            usage,
            extent: match usage {
                ArgumentUse::Scalar => Extent::One,
                _ => Extent::Unknown,
            },
        });
    }
    Ok(Some(arguments))
}

fn element(word: &str) -> Option<ElementType> {
    Some(match word {
        "u8" => ElementType::U8,
        "i16" => ElementType::I16,
        "i32" => ElementType::I32,
        "u32" => ElementType::U32,
        "i64" => ElementType::I64,
        "u64" => ElementType::U64,
        "f32" => ElementType::F32,
        "f64" => ElementType::F64,
        _ => return None,
    })
}

fn usage(word: &str) -> Option<ArgumentUse> {
    Some(match word {
        "scalar" => ArgumentUse::Scalar,
        "in" => ArgumentUse::In,
        "out" => ArgumentUse::Out,
        "inout" => ArgumentUse::InOut,
        _ => return None,
    })
}

/// Two arguments of one name, as of the parameters `x TEXT` and `x_offsets INTEGER`, would not
/// compile.
fn no_argument_twice(functions: &[CFunction]) -> Result<(), String> {
    for function in functions {
        for (i, argument) in function.arguments.iter().enumerate() {
            let name = &argument.name;
            if function.arguments[..i].iter().any(|a| a.name == *name) {
                return Err(format!(
                    "the C function '{}' would have two arguments '{name}'; rename a parameter",
                    function.name
                ));
            }
        }
    }
    Ok(())
}

fn is_c_identifier(name: &str) -> bool {
    name.len() <= 127
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests;
