//! The wire format: Programs and runtime filters as protobuf (`proto/program.proto`).
//!
//! Expressions travel as flat postfix lists, so that reading them takes no recursion, and
//! reading refuses what is nested deeper than [`MAX_DEPTH`]. Hostile bytes give
//! [`ProgramError::Malformed`]; whether a Program that could be read also makes sense is for
//! [`verify()`](crate::verify()) to say.

mod decode;
mod encode;

use prost::Message;

use crate::{Limits, Program, ProgramError, RuntimeFilter};

/// The newest version of the format that this build reads. A Program states the lowest version
/// that knows everything it uses:
///
/// | version | brought |
/// |---|---|
/// | 1 | all that is not listed below |
/// | 2 | `Position`, `Regex`, `ContainsAny`, `Distance`, `Nearest` |
/// | 3 | `Kernel` |
pub const VERSION: u32 = 3;

/// Levels of nesting of an expression that can be read: bounds the stack that walking it takes.
/// [`Limits::depth`] is what is allowed to run.
pub const MAX_DEPTH: u32 = 256;

/// Levels of lists and structs of a column type that can be read.
const MAX_TYPE_DEPTH: u32 = 32;

/// The code that prost generates.
mod proto {
    #![allow(missing_docs, clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/flashmesh.program.v1.rs"));
}

impl Program {
    /// The Program as bytes. Every Program that [`verify()`](crate::verify()) accepts within
    /// [`Limits::default`] can be read back from them.
    pub fn encode(&self) -> Vec<u8> {
        encode::program(self).encode_to_vec()
    }

    /// Reads what [`Program::encode`] wrote.
    ///
    /// # Errors
    /// `NewerVersion` when a newer flashmesh wrote it, `OverLimit` for more bytes than
    /// [`Limits::default`] allows, `Malformed` for all else that is no Program.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProgramError> {
        // Twice, because nodes and types take bytes that `Limits::bytes` doesn't count.
        let allowed = 2 * Limits::default().bytes;
        check_size("bytes", bytes, allowed)?;
        decode::program(proto::Program::decode(bytes).map_err(not_protobuf)?)
    }
}

impl RuntimeFilter {
    /// The filter as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode::runtime_filter(self).encode_to_vec()
    }

    /// Reads what [`RuntimeFilter::encode`] wrote; errors as [`Program::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProgramError> {
        let allowed = 2 * Limits::default().runtime_filter_bytes;
        check_size("runtime_filter_bytes", bytes, allowed)?;
        decode::runtime_filter(proto::RuntimeFilter::decode(bytes).map_err(not_protobuf)?)
    }
}

fn not_protobuf(error: prost::DecodeError) -> ProgramError {
    ProgramError::malformed(error.to_string())
}

fn check_size(limit: &'static str, bytes: &[u8], allowed: u64) -> Result<(), ProgramError> {
    let found = bytes.len() as u64;
    if found > allowed {
        return Err(ProgramError::OverLimit {
            limit,
            found,
            allowed,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty node is two bytes on the wire; this is what it becomes in memory.
    #[test]
    fn a_node_stays_small() {
        assert!(size_of::<proto::Node>() <= 16);
        assert!(size_of::<proto::Scalar>() <= 32);
    }

    /// The wire version is read before the rest is judged.
    #[test]
    fn a_newer_version_is_named() {
        let bytes = proto::Program {
            version: VERSION + 1,
            ..Default::default()
        }
        .encode_to_vec();
        let error = Program::decode(&bytes).unwrap_err();
        assert!(
            matches!(
                error,
                ProgramError::NewerVersion {
                    found,
                    supported: VERSION
                } if found == VERSION + 1
            ),
            "{error}"
        );
    }

    fn nested_nots(depth: usize) -> Vec<u8> {
        use proto::node::Instruction;
        let node = |instruction| proto::Node {
            instruction: Some(instruction),
        };
        let mut nodes = vec![node(Instruction::Column(0))];
        nodes.resize(depth, node(Instruction::Not(proto::Unit {})));
        proto::Program {
            version: VERSION,
            filter: vec![proto::Expression { nodes }],
            output: Some(proto::program::Output::Rows(Default::default())),
            ..Default::default()
        }
        .encode_to_vec()
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(Program::decode(&nested_nots(MAX_DEPTH as usize)).is_ok());
        let error = Program::decode(&nested_nots(MAX_DEPTH as usize + 1)).unwrap_err();
        assert!(
            matches!(error, ProgramError::OverLimit { limit: "depth", .. }),
            "{error}"
        );
        // A million levels neither exhaust the stack here nor when dropped.
        assert!(Program::decode(&nested_nots(1_000_000)).is_err());
    }
}
