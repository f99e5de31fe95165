//! What a kernel's C functions look like to a device: names, arguments in C's order, memory banks.
//!
//! A manifest gives it for user kernels; a device's container carries it, so that what is loaded
//! says itself how it is called.

use serde::{Deserialize, Serialize};

use crate::{Result, StorageError};

/// Longest name of a function or an argument, in bytes: a compute unit is named twice by it in the
/// 64 bytes that a device container has for that.
pub const MAX_NAME_BYTES: usize = 28;
/// Most functions that one device container holds.
pub const MAX_FUNCTIONS: usize = 64;
/// Most compute units of one function.
pub const MAX_COMPUTE_UNITS: u32 = 32;
/// Most arguments of one function.
pub const MAX_ARGUMENTS: usize = 64;

/// One kernel: the functions that are built, loaded and called together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelInterface {
    /// The kernel's SQL name.
    pub name: String,
    /// Copies of every function on the device, 1 to [`MAX_COMPUTE_UNITS`].
    pub compute_units: u32,
    /// Its C functions: one, or the four of an aggregate.
    #[serde(rename = "function")]
    pub functions: Vec<FunctionInterface>,
}

/// One C function without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionInterface {
    /// The C name.
    pub name: String,
    /// The arguments in C's order.
    #[serde(rename = "argument")]
    pub arguments: Vec<ArgumentInterface>,
}

/// One argument of a C function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArgumentInterface {
    /// The C name.
    pub name: String,
    /// How it is passed.
    #[serde(rename = "use")]
    pub usage: ArgumentUse,
    /// The type of the value, or of the array's elements.
    #[serde(rename = "type")]
    pub element: ElementType,
    /// The memory bank of an array, as Vitis names it: `DDR[0]`, `HBM[3]`, `HOST[0]`.
    #[serde(default = "default_bank")]
    pub bank: String,
}

fn default_bank() -> String {
    "DDR[0]".to_owned()
}

/// How an argument is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArgumentUse {
    /// By value.
    Scalar,
    /// An array that the kernel reads.
    In,
    /// An array that the kernel writes.
    Out,
    /// An array that the kernel reads and writes.
    InOut,
}

impl ArgumentUse {
    /// Whether it is an array.
    pub fn is_buffer(self) -> bool {
        self != Self::Scalar
    }
}

/// A C type of fixed width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// `uint8_t`.
    U8,
    /// `int16_t`.
    I16,
    /// `int32_t`.
    I32,
    /// `uint32_t`.
    U32,
    /// `int64_t`.
    I64,
    /// `uint64_t`.
    U64,
    /// `float`.
    F32,
    /// `double`.
    F64,
}

impl ElementType {
    /// The type's name in C.
    pub fn c_name(self) -> &'static str {
        match self {
            Self::U8 => "uint8_t",
            Self::I16 => "int16_t",
            Self::I32 => "int32_t",
            Self::U32 => "uint32_t",
            Self::I64 => "int64_t",
            Self::U64 => "uint64_t",
            Self::F32 => "float",
            Self::F64 => "double",
        }
    }

    /// Bytes of one value.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::I16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// The kinds of memory that a bank may be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BankKind {
    /// Memory modules on the card.
    Ddr,
    /// High-bandwidth memory in the package.
    Hbm,
    /// The host's own memory, reached over PCIe.
    Host,
}

/// A bank as Vitis names it, taken apart: `HBM[3]` is (`Hbm`, 3).
///
/// # Errors
/// `Invalid` with the forms that there are.
pub fn parse_bank(name: &str) -> Result<(BankKind, u32)> {
    let parse = || {
        let (kind, rest) = name.split_once('[')?;
        let kind = match kind {
            "DDR" => BankKind::Ddr,
            "HBM" => BankKind::Hbm,
            "HOST" => BankKind::Host,
            _ => return None,
        };
        let digits = rest.strip_suffix(']')?;
        let canonical = digits == "0" || !digits.starts_with('0');
        let plain = canonical && digits.bytes().all(|byte| byte.is_ascii_digit());
        let index = digits.parse().ok().filter(|index| *index < 64)?;
        plain.then_some((kind, index))
    };
    parse().ok_or_else(|| {
        StorageError::Invalid(format!(
            "memory bank '{name}': write DDR[n], HBM[n] or HOST[n] with n below 64"
        ))
    })
}

impl KernelInterface {
    /// Checks names, numbers and banks, so that what is generated from them is well-formed C++,
    /// XML and Vitis configuration whatever a manifest says.
    ///
    /// # Errors
    /// `Invalid` with the kernel's name and what to change.
    pub fn validate(&self) -> Result<()> {
        let refuse = |what: String| {
            let shown: String = self.name.chars().take(80).collect();
            Err(StorageError::Invalid(format!("kernel '{shown}': {what}")))
        };
        if !is_identifier(&self.name, 63) {
            return refuse("its name is not an identifier of at most 63 bytes".into());
        }
        if !(1..=MAX_COMPUTE_UNITS).contains(&self.compute_units) {
            return refuse(format!(
                "{} compute units; 1 to {MAX_COMPUTE_UNITS} are possible",
                self.compute_units
            ));
        }
        if self.functions.is_empty() {
            return refuse("it has no function".into());
        }
        for function in &self.functions {
            if !is_identifier(&function.name, MAX_NAME_BYTES) {
                return refuse(format!(
                    "on a device a function's name is an identifier of at most {MAX_NAME_BYTES} \
                     bytes; '{}' is not",
                    function.name
                ));
            }
            if function.arguments.len() > MAX_ARGUMENTS {
                return refuse(format!(
                    "'{}' has {} arguments; {MAX_ARGUMENTS} are possible",
                    function.name,
                    function.arguments.len()
                ));
            }
            for (index, argument) in function.arguments.iter().enumerate() {
                if !is_identifier(&argument.name, 63) {
                    return refuse(format!("'{}' is no name of an argument", argument.name));
                }
                let before = &function.arguments[..index];
                if before.iter().any(|other| other.name == argument.name) {
                    return refuse(format!("two arguments are named '{}'", argument.name));
                }
                parse_bank(&argument.bank)?;
            }
        }
        Ok(())
    }

    /// The function of that name.
    pub fn function(&self, name: &str) -> Option<&FunctionInterface> {
        self.functions.iter().find(|function| function.name == name)
    }
}

fn is_identifier(name: &str, max_bytes: usize) -> bool {
    let mut bytes = name.bytes();
    let starts = bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    starts
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() <= max_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banks_have_one_spelling() {
        assert_eq!(parse_bank("HBM[31]").unwrap(), (BankKind::Hbm, 31));
        for wrong in [
            "DDR", "DDR[]", "DDR[00]", "DDR[+1]", "DDR[64]", "ddr[0]", "DDR[0]x", "",
        ] {
            assert!(parse_bank(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_that_would_leave_their_place_in_generated_text_are_refused() {
        let mut kernel = KernelInterface {
            name: "k".into(),
            compute_units: 1,
            functions: vec![FunctionInterface {
                name: "k".into(),
                arguments: vec![ArgumentInterface {
                    name: "x".into(),
                    usage: ArgumentUse::In,
                    element: ElementType::I32,
                    bank: default_bank(),
                }],
            }],
        };
        kernel.validate().unwrap();
        kernel.functions[0].arguments[0].name = "x; system(\"\")".into();
        assert!(kernel.validate().is_err());
        kernel.functions[0].arguments[0].name = "x".into();
        kernel.functions[0].name = "a".repeat(MAX_NAME_BYTES + 1);
        assert!(kernel.validate().is_err());
        kernel.functions[0].name = "\"/>".into();
        assert!(kernel.validate().is_err());
    }
}
