//! What tests of Programs need (feature `testing`): random schemas, batches and well-typed
//! Programs, and the comparison of an accelerator's output with the interpreter's.
//!
//! ```
//! use flashmesh_pushdown::{interpreter, testing};
//!
//! testing::for_each_case("the interpreter agrees with itself", 10, |generator| {
//!     let schema = generator.schema(5);
//!     let batch = generator.batch(&schema, 100);
//!     let program = generator.program(&schema, &batch);
//!     let input = [batch.project(&testing::ordinals(&program)).unwrap()];
//!     let output = interpreter::run(&program, &input).unwrap();
//!     testing::check_output(&program, &input, &[output], 1).unwrap();
//! });
//! ```

mod compare;
mod data;
mod programs;

use rand::SeedableRng;
use rand::rngs::StdRng;

pub use compare::check_output;

use crate::Program;

/// Environment variable that replays one case of a property test.
pub const SEED_VARIABLE: &str = "FLASHMESH_SEED";

/// A source of random test data; the same seed gives the same data.
#[derive(Debug)]
pub struct Generator {
    rng: StdRng,
    /// Whether floats may be NaN, infinite or huge. Then Programs don't compute with floats,
    /// because the sign of a NaN that comes out of arithmetic depends on the machine.
    special_floats: bool,
}

impl Generator {
    /// A generator that is determined by its seed.
    pub fn new(seed: u64) -> Self {
        use rand::RngExt;
        let mut rng = StdRng::seed_from_u64(seed);
        let special_floats = rng.random();
        Self {
            rng,
            special_floats,
        }
    }

    /// The random numbers themselves.
    pub fn rng(&mut self) -> &mut StdRng {
        &mut self.rng
    }
}

/// Runs a property for `cases` random seeds, or only for that of [`SEED_VARIABLE`] when it is
/// set. A case that panics prints its seed.
pub fn for_each_case(property: &str, cases: u64, mut check: impl FnMut(&mut Generator)) {
    struct Case<'a>(&'a str, u64);
    impl Drop for Case<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!(
                    "'{}' failed; replay with {SEED_VARIABLE}={}",
                    self.0, self.1
                );
            }
        }
    }
    let replay = std::env::var(SEED_VARIABLE).ok().map(|seed| {
        seed.parse::<u64>()
            .unwrap_or_else(|_| panic!("{SEED_VARIABLE}={seed} is no number"))
    });
    let first = replay.unwrap_or_else(rand::random);
    let cases = if replay.is_some() { 1 } else { cases };
    println!("'{property}': seeds from {first}");
    for case in 0..cases {
        let case = Case(property, first.wrapping_add(case));
        check(&mut Generator::new(case.1));
    }
}

/// The positions of a Program's columns in the table: what turns a batch of the table into an
/// input of the [`interpreter`](crate::interpreter).
pub fn ordinals(program: &Program) -> Vec<usize> {
    program
        .columns
        .iter()
        .map(|column| column.ordinal as usize)
        .collect()
}
