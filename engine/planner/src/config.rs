//! The session options `flashmesh.*`.

use std::any::Any;
use std::fmt;
use std::str::FromStr;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::common::{DataFusionError, Result};
use datafusion::config::ConfigOptions;

/// Whether work may go into the store: `SET flashmesh.pushdown = …`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pushdown {
    /// What the cost model expects to save time.
    #[default]
    Auto,
    /// Everything that a Program can express.
    Always,
    /// Nothing: the host reads columns and does the rest itself.
    Never,
}

/// What to do when an accelerator can't run what was planned for it:
/// `SET flashmesh.fallback = …`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fallback {
    /// Do it on the host, and count it.
    #[default]
    Allow,
    /// Fail the query.
    Error,
}

/// Whether the nodes of a rack join, group and sort rows among themselves:
/// `SET flashmesh.distributed = …`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distributed {
    /// Where much would come to the head.
    #[default]
    Auto,
    /// Wherever a plan can be cut into parts.
    Always,
    /// Never: all that is above scans runs on the head.
    Never,
}

impl FromStr for Distributed {
    type Err = DataFusionError;

    fn from_str(value: &str) -> Result<Self> {
        match value.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(refused("distributed", value, "'auto', 'always' or 'never'")),
        }
    }
}

impl fmt::Display for Distributed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl FromStr for Pushdown {
    type Err = DataFusionError;

    fn from_str(value: &str) -> Result<Self> {
        match value.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(refused("pushdown", value, "'auto', 'always' or 'never'")),
        }
    }
}

impl fmt::Display for Pushdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl FromStr for Fallback {
    type Err = DataFusionError;

    fn from_str(value: &str) -> Result<Self> {
        match value.trim().to_ascii_lowercase().as_str() {
            "allow" => Ok(Self::Allow),
            "error" => Ok(Self::Error),
            _ => Err(refused("fallback", value, "'allow' or 'error'")),
        }
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Error => "error",
        })
    }
}

/// Vectors of a search whose recall is measured when the option is just `on`.
const RECALL_SAMPLE: usize = 100;

/// The options of a session, a [`ConfigExtension`] with the prefix `flashmesh`.
#[derive(Debug, Clone, Default)]
pub struct FlashmeshOptions {
    /// `flashmesh.pushdown`
    pub pushdown: Pushdown,
    /// `flashmesh.fallback`
    pub fallback: Fallback,
    /// `flashmesh.distributed`
    pub distributed: Distributed,
    /// `flashmesh.cache_size`: capacity of the page cache in bytes; `None` leaves what the
    /// database was opened with. The cache belongs to the database, so the last session that
    /// set a size decides.
    pub cache_size_bytes: Option<u64>,
    /// `flashmesh.hash_join_size`: estimated bytes of the smaller input of a join from which on both
    /// inputs are sorted, which can spill; `None`: never.
    pub hash_join_bytes: Option<u64>,
    /// `flashmesh.approximate`: whether `ORDER BY distance LIMIT k` may use an lsh index, and so
    /// miss some of the nearest rows.
    pub approximate: bool,
    /// `flashmesh.measure_recall`: of how many vectors of an approximate search the exact answer is
    /// computed too, for the recall that `EXPLAIN ANALYZE` shows; 0: of none.
    pub measure_recall: usize,
    /// `flashmesh.accelerator`: by name, which accelerator of the node runs Programs; `None`: the
    /// node's first, `cpu`.
    pub accelerator: Option<String>,
}

impl FlashmeshOptions {
    /// The options in `config`, or the defaults where the session never registered any.
    pub fn of(config: &ConfigOptions) -> Self {
        config.extensions.get::<Self>().cloned().unwrap_or_default()
    }
}

impl ConfigExtension for FlashmeshOptions {
    const PREFIX: &'static str = "flashmesh";
}

impl ExtensionOptions for FlashmeshOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "pushdown" => self.pushdown = value.parse()?,
            "fallback" => self.fallback = value.parse()?,
            "distributed" => self.distributed = value.parse()?,
            "approximate" => {
                self.approximate = parse_switch(value)
                    .ok_or_else(|| refused("approximate", value, "'on' or 'off'"))?;
            }
            "measure_recall" => self.measure_recall = parse_sample(value)?,
            "accelerator" => self.accelerator = parse_accelerator(value)?,
            "cache_size" => self.cache_size_bytes = Some(parse_size(value)?),
            "hash_join_size" => self.hash_join_bytes = Some(parse_size(value)?),
            _ => {
                return Err(DataFusionError::Configuration(format!(
                    "there is no option 'flashmesh.{key}'; the options are flashmesh.pushdown, flashmesh.fallback, flashmesh.cache_size, flashmesh.hash_join_size, flashmesh.approximate, flashmesh.measure_recall, flashmesh.accelerator and flashmesh.distributed"
                )));
            }
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![
            ConfigEntry {
                key: "flashmesh.pushdown".into(),
                value: Some(self.pushdown.to_string()),
                description: "Whether filters, projections, aggregates and top-k run in the store: 'auto' (by cost), 'always' or 'never'",
            },
            ConfigEntry {
                key: "flashmesh.fallback".into(),
                value: Some(self.fallback.to_string()),
                description: "When an accelerator can't run a planned operation: 'allow' (the host does it) or 'error'",
            },
            ConfigEntry {
                key: "flashmesh.distributed".into(),
                value: Some(self.distributed.to_string()),
                description: "Whether the nodes of a rack join, group and sort rows among themselves: 'auto' (where much would come to the head), 'always' or 'never'",
            },
            ConfigEntry {
                key: "flashmesh.accelerator".into(),
                value: Some(self.accelerator.clone().unwrap_or_else(|| "auto".into())),
                description: "What runs beside the pages: 'auto' (the CPU), 'cpu', or 'xrt' (a device; see --xclbin)",
            },
            ConfigEntry {
                key: "flashmesh.cache_size".into(),
                value: self.cache_size_bytes.map(format_size),
                description: "Capacity of the page cache, e.g. '512MB' or '1GiB'",
            },
            ConfigEntry {
                key: "flashmesh.hash_join_size".into(),
                value: self.hash_join_bytes.map(format_size),
                description: "Estimated size of the smaller input of a join from which on both are sorted, which can spill, e.g. '512MB'",
            },
            ConfigEntry {
                key: "flashmesh.approximate".into(),
                value: Some(if self.approximate { "on" } else { "off" }.into()),
                description: "Whether ORDER BY distance LIMIT k may use an lsh index and miss some of the nearest rows: 'on' or 'off'",
            },
            ConfigEntry {
                key: "flashmesh.measure_recall".into(),
                value: Some(match self.measure_recall {
                    0 => "off".into(),
                    sample => sample.to_string(),
                }),
                description: "Whether approximate searches also compute the exact answer, for the recall in EXPLAIN ANALYZE: 'off', 'on' or of how many vectors of a search",
            },
        ]
    }
}

fn refused(key: &str, value: &str, allowed: &str) -> DataFusionError {
    DataFusionError::Configuration(format!(
        "flashmesh.{key} can't be '{value}'; it is {allowed}"
    ))
}

fn parse_accelerator(value: &str) -> Result<Option<String>> {
    match value.trim().to_ascii_lowercase().as_str() {
        "auto" => Ok(None),
        name @ ("cpu" | "xrt") => Ok(Some(name.into())),
        _ => Err(refused("accelerator", value, "'auto', 'cpu' or 'xrt'")),
    }
}

fn parse_switch(value: &str) -> Option<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "on" | "true" => Some(true),
        "off" | "false" => Some(false),
        _ => None,
    }
}

fn parse_sample(value: &str) -> Result<usize> {
    let sample = match parse_switch(value) {
        Some(true) => Some(RECALL_SAMPLE),
        Some(false) => Some(0),
        None => value.trim().parse().ok(),
    };
    sample.ok_or_else(|| {
        refused(
            "measure_recall",
            value,
            "'on', 'off' or a number of vectors",
        )
    })
}

/// Units of a size, longest suffix first so that `kib` is not read as `b`.
const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

/// Bytes of a size such as `512MB`, `1GiB`, `0.5 GB` or `1048576`. `kB`, `MB`, `GB`, `TB` are
/// powers of 1000; `KiB` … and the bare letters powers of 1024.
pub fn parse_size(text: &str) -> Result<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, factor)| lower.strip_suffix(suffix).map(|n| (n.trim_end(), *factor)))
        .unwrap_or((lower.as_str(), 1));
    let wrong = || {
        refused(
            "cache_size",
            text,
            "a number of bytes with an optional unit, e.g. '512MB', '1GiB' or '1048576'",
        )
    };
    let size = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(unit).ok_or_else(wrong)?,
        Err(_) => {
            let fraction: f64 = number.parse().map_err(|_| wrong())?;
            let bytes = fraction * unit as f64;
            if !(0.0..=(1u64 << 60) as f64).contains(&bytes) {
                return Err(wrong());
            }
            bytes as u64
        }
    };
    Ok(size)
}

/// A size in the largest unit that divides it, otherwise in bytes.
fn format_size(bytes: u64) -> String {
    for (name, factor) in [
        ("GiB", 1u64 << 30),
        ("GB", 1_000_000_000),
        ("MiB", 1 << 20),
        ("MB", 1_000_000),
        ("KiB", 1 << 10),
    ] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{name}", bytes / factor);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ConfigOptions {
        let mut config = ConfigOptions::default();
        config.extensions.insert(FlashmeshOptions::default());
        config
    }

    #[test]
    fn options_are_set_by_name() {
        let mut config = config();
        config.set("flashmesh.pushdown", "NEVER").unwrap();
        config.set("flashmesh.fallback", "error").unwrap();
        config.set("flashmesh.cache_size", "512MB").unwrap();
        for (value, sample) in [("on", RECALL_SAMPLE), ("7", 7), ("off", 0)] {
            config.set("flashmesh.measure_recall", value).unwrap();
            assert_eq!(FlashmeshOptions::of(&config).measure_recall, sample);
        }
        let options = FlashmeshOptions::of(&config);
        assert_eq!(options.pushdown, Pushdown::Never);
        assert_eq!(options.fallback, Fallback::Error);
        assert_eq!(options.cache_size_bytes, Some(512_000_000));
    }

    #[test]
    fn wrong_values_name_the_right_ones() {
        let mut config = config();
        for (key, value, hint) in [
            (
                "flashmesh.pushdown",
                "sometimes",
                "'auto', 'always' or 'never'",
            ),
            ("flashmesh.fallback", "maybe", "'allow' or 'error'"),
            ("flashmesh.cache_size", "large", "'512MB'"),
            ("flashmesh.cache_size", "-1", "'512MB'"),
            ("flashmesh.cache_size", "99999999999TB", "'512MB'"),
            ("flashmesh.measure_recall", "often", "'on', 'off'"),
            ("flashmesh.colour", "red", "flashmesh.cache_size"),
        ] {
            let message = config.set(key, value).unwrap_err().to_string();
            assert!(message.contains(hint), "{message}");
            assert!(
                message.contains(value) || message.contains(key),
                "{message}"
            );
        }
    }

    #[test]
    fn sizes_in_all_units() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17 b", 17),
            ("2k", 2048),
            ("2kB", 2000),
            ("2 KiB", 2048),
            ("1GiB", 1 << 30),
            ("0.5GB", 500_000_000),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        assert_eq!(format_size(1 << 30), "1GiB");
        assert_eq!(format_size(512_000_000), "512MB");
        assert_eq!(format_size(1001), "1001");
    }

    #[test]
    fn entries_carry_the_full_name() {
        let keys: Vec<_> = FlashmeshOptions::default()
            .entries()
            .into_iter()
            .map(|e| e.key)
            .collect();
        assert_eq!(
            keys,
            [
                "flashmesh.pushdown",
                "flashmesh.fallback",
                "flashmesh.distributed",
                "flashmesh.accelerator",
                "flashmesh.cache_size",
                "flashmesh.hash_join_size",
                "flashmesh.approximate",
                "flashmesh.measure_recall"
            ]
        );
    }
}
