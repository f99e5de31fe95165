//! The crate's error, split by what the caller can do about it.

use arrow::error::ArrowError;

/// What is wrong with a Program, its bytes, or the values that it met.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The Program makes no sense as it stands: a type that doesn't fit, a column that isn't
    /// there. Change what `expression` names in the way that `problem` says.
    #[error("program refused: {expression}: {problem}")]
    Invalid {
        /// The expression or the part of the Program that is wrong.
        expression: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// The Program is larger than the [`Limits`](crate::Limits) allow. Keep a part of it above
    /// the scan, or raise the named limit.
    #[error("program refused: {limit} is {found}, at most {allowed} is allowed")]
    OverLimit {
        /// Which limit: the name of the field of [`Limits`](crate::Limits).
        limit: &'static str,
        /// How many the Program has, or at least has.
        found: u64,
        /// How many it may have.
        allowed: u64,
    },
    /// The bytes are no encoded Program: damaged, or sent by something else.
    #[error("malformed program: {0}")]
    Malformed(String),
    /// The bytes come from a newer flashmesh.
    #[error(
        "program has wire version {found}, this flashmesh knows versions up to {supported}; \
         update it, or run the query without pushdown"
    )]
    NewerVersion {
        /// The version of the bytes.
        found: u32,
        /// The newest that this build knows.
        supported: u32,
    },
    /// A computation met values that it has no result for, as it would above the scan.
    #[error("{expression}: {problem}")]
    Arithmetic {
        /// The expression.
        expression: String,
        /// What went wrong, with the values.
        problem: String,
    },
    /// Arrow refused the values that a result was to be built of.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}

impl ProgramError {
    /// A [`ProgramError::Invalid`].
    pub(crate) fn invalid(expression: impl ToString, problem: impl Into<String>) -> Self {
        Self::Invalid {
            expression: expression.to_string(),
            problem: problem.into(),
        }
    }

    /// A [`ProgramError::Malformed`].
    pub(crate) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed(what.into())
    }
}
