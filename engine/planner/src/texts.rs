//! How alike two texts are, how they are written in addresses and without accents, and their digests.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, StringArray, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha1::{Digest, Sha1};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// The functions.
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    FUNCTIONS
        .iter()
        .map(|function| Arc::new(ScalarUDF::from(Texts::new(function))))
        .collect()
}

/// What is computed of a row's texts.
#[derive(Debug, Clone, Copy)]
enum Computed {
    Count(fn(&str, &str) -> Result<usize>),
    Share(fn(&str, &str) -> f64),
    Text(fn(&str) -> Result<String>),
}

#[derive(Debug)]
struct Function {
    name: &'static str,
    aliases: &'static [&'static str],
    says: &'static str,
    computed: Computed,
}

/// What stays as it is in an address (RFC 3986, section 2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

static FUNCTIONS: [Function; 9] = [
    Function {
        name: "damerau_levenshtein",
        aliases: &[],
        says: "how many characters are to be put in, left out, replaced or swapped with the next one to make one text of another",
        computed: Computed::Count(|a, b| Ok(strsim::damerau_levenshtein(a, b))),
    },
    Function {
        name: "hamming",
        aliases: &["mismatches"],
        says: "at how many places two texts of one length have different characters",
        computed: Computed::Count(|a, b| {
            let distance = strsim::hamming(a, b);
            distance.map_err(|_| {
                let [a, b] = [a, b].map(|text| text.chars().count());
                exec_datafusion_err!("hamming: texts of different lengths, {a} and {b} characters")
            })
        }),
    },
    Function {
        name: "jaccard",
        aliases: &[],
        says: "of the characters that two texts have, the share that both have",
        computed: Computed::Share(jaccard),
    },
    Function {
        name: "jaro_similarity",
        aliases: &[],
        says: "how alike two texts are by Jaro's measure, 1 for equal ones",
        computed: Computed::Share(strsim::jaro),
    },
    Function {
        name: "jaro_winkler_similarity",
        aliases: &[],
        says: "how alike two texts are by Jaro and Winkler's measure, 1 for equal ones",
        computed: Computed::Share(strsim::jaro_winkler),
    },
    Function {
        name: "sha1",
        aliases: &[],
        says: "the SHA-1 of a text in UTF-8, in hexadecimal digits; it is not safe against who wants two texts of one",
        computed: Computed::Text(|text| {
            let mut digits = String::with_capacity(40);
            for byte in Sha1::digest(text) {
                write!(digits, "{byte:02x}").map_err(|e| DataFusionError::External(e.into()))?;
            }
            Ok(digits)
        }),
    },
    Function {
        name: "strip_accents",
        aliases: &[],
        says: "a text without the accents and other marks of its letters",
        computed: Computed::Text(|text| {
            let letters = text.nfd().filter(|sign| !is_combining_mark(*sign));
            Ok(letters.nfc().collect())
        }),
    },
    Function {
        name: "url_encode",
        aliases: &[],
        says: "a text as it is written in an address, `%20` for a blank",
        computed: Computed::Text(|text| Ok(utf8_percent_encode(text, ENCODED).to_string())),
    },
    Function {
        name: "url_decode",
        aliases: &[],
        says: "a text as it was before it was written in an address",
        computed: Computed::Text(|text| match percent_decode_str(text).decode_utf8() {
            Ok(text) => Ok(text.into_owned()),
            Err(error) => exec_err!("url_decode: no UTF-8, {error}"),
        }),
    },
];

fn jaccard(a: &str, b: &str) -> f64 {
    let [a, b] = [a, b].map(|text| text.chars().collect::<HashSet<_>>());
    let all = a.union(&b).count();
    match all {
        0 => 1.0,
        _ => a.intersection(&b).count() as f64 / all as f64,
    }
}

#[derive(Debug)]
struct Texts {
    function: &'static Function,
    aliases: Vec<String>,
    signature: Signature,
    documentation: Documentation,
}

impl PartialEq for Texts {
    fn eq(&self, other: &Self) -> bool {
        self.function.name == other.function.name
    }
}

impl Eq for Texts {}

impl std::hash::Hash for Texts {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.function.name.hash(state);
    }
}

impl Texts {
    fn new(function: &'static Function) -> Self {
        let (count, args) = match function.computed {
            Computed::Text(_) => (1, "text"),
            _ => (2, "text, text"),
        };
        let call = format!("{}({args})", function.name);
        let documentation = Documentation::builder(DocSection::default(), function.says, call);
        Self {
            function,
            aliases: function.aliases.iter().map(ToString::to_string).collect(),
            signature: Signature::string(count, Volatility::Immutable),
            documentation: documentation.build(),
        }
    }
}

impl ScalarUDFImpl for Texts {
    fn name(&self) -> &str {
        self.function.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.function.computed {
            Computed::Count(_) => DataType::Int64,
            Computed::Share(_) => DataType::Float64,
            Computed::Text(_) => DataType::Utf8,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let computed = |columns: &[ArrayRef]| {
            let columns = columns.iter().map(|texts| cast(texts, &DataType::Utf8View));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            let texts: Vec<&StringViewArray> = columns.iter().map(|c| c.as_string_view()).collect();
            compute(self.function.computed, &texts)
        };
        make_scalar_function(computed, Vec::new())(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

fn compute(computed: Computed, columns: &[&StringViewArray]) -> Result<ArrayRef> {
    let pairs = || {
        let [left, right] = columns else {
            return exec_err!("two texts are compared");
        };
        Ok(left
            .iter()
            .zip(right.iter())
            .map(|(left, right)| left.zip(right)))
    };
    Ok(match computed {
        Computed::Count(count) => {
            let counts =
                pairs()?.map(|pair| pair.map(|(a, b)| Ok(count(a, b)? as i64)).transpose());
            Arc::new(counts.collect::<Result<Int64Array>>()?)
        }
        Computed::Share(share) => {
            let shares = pairs()?.map(|pair| pair.map(|(a, b)| share(a, b)));
            Arc::new(shares.collect::<Float64Array>())
        }
        Computed::Text(text) => {
            let [texts] = columns else {
                return exec_err!("one text is written");
            };
            let texts = texts.iter().map(|given| given.map(text).transpose());
            Arc::new(texts.collect::<Result<StringArray>>()?)
        }
    })
}
