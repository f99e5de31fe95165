//! The figures of the papers beside what the model gives for them.

mod access;
mod applications;
mod minerva;
mod nearest;
mod page;
mod plot;
mod svg;
mod willow;

use super::parameters::Parameters;

pub use page::committed;
pub use plot::{Plot, Series};
pub use svg::svg;

/// What a paper says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Claim {
    /// A number, or about that.
    About(f64),
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

/// How much a comparison proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The number, or what it is made of, went into the model: that it comes out shows no more than
    /// that the parts fit together.
    Input,
    /// A parameter was chosen to give it.
    Fitted,
    /// Neither: the model predicts it.
    Outcome,
}

impl Proof {
    /// As tables have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Fitted => "fitted",
            Self::Outcome => "outcome",
        }
    }
}

/// A number of a paper and the modelled one.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What is compared.
    pub what: String,
    /// Where the paper says it.
    pub section: &'static str,
    /// What the paper says.
    pub claim: Claim,
    /// What the model gives, in the same unit.
    pub modelled: f64,
    /// Of both.
    pub unit: &'static str,
    /// How much it proves.
    pub proof: Proof,
}

impl Row {
    fn new(
        what: impl Into<String>,
        section: &'static str,
        claim: Claim,
        modelled: f64,
        unit: &'static str,
        proof: Proof,
    ) -> Self {
        let what = what.into();
        Self {
            what,
            section,
            claim,
            modelled,
            unit,
            proof,
        }
    }

    /// How far the modelled value is from the claim, in percent of it; of a bound that holds, None.
    pub fn difference(&self) -> Option<f64> {
        let off = |claim: f64| Some((self.modelled / claim - 1.0) * 100.0);
        match self.claim {
            Claim::About(claim) => off(claim),
            Claim::AtMost(claim) if self.modelled > claim => off(claim),
            Claim::AtLeast(claim) if self.modelled < claim => off(claim),
            _ => None,
        }
    }

    /// Within a tenth of the claim.
    pub fn fits(&self) -> bool {
        self.difference().is_none_or(|off| off.abs() <= 10.0)
    }
}

/// A figure or table of a paper.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The name of its plot's file, without `.svg`.
    pub id: &'static str,
    /// The paper's name and number of it.
    pub of: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What is compared; empty where the text has no numbers.
    pub rows: Vec<Row>,
    /// What is drawn.
    pub plot: Plot,
    /// Fields of [`Parameters`] that go into it.
    pub parameters: &'static [&'static str],
    /// What is assumed beyond them, and what does not fit and why.
    pub notes: &'static str,
}

/// All of them, modelled with these parameters.
pub fn figures(p: &Parameters) -> Vec<Figure> {
    vec![
        access::network(p),
        access::latencies(p),
        access::bandwidth(p),
        nearest::dram(p),
        nearest::mostly_dram(p),
        nearest::off_the_shelf(p),
        nearest::in_store(p),
        applications::graph(p),
        applications::search(p),
        applications::power(p),
        minerva::bandwidth(p),
        minerva::search(p),
        minerva::scaling(p),
        minerva::key_values(p),
        willow::bandwidth(p),
        willow::key_values(p),
    ]
}
