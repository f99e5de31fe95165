//! The C functions that a manifest asks for, argument by argument and with the extent of every
//! array: what the sandbox checks a module against and what calls between kernels copy.

use std::fmt;

use arrow::datatypes::DataType;

use super::interface::{ArgumentUse, ElementType};
use super::manifest::Kind;
use super::signature::{Parameter, Returns, Signature};

/// How many elements an array has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// No array: one value.
    One,
    /// That many.
    Fixed(u32),
    /// That many a row.
    PerRow(u32),
    /// One for each row, and one more.
    Offsets,
    /// As many as the last of the offsets in the argument with this index.
    Text(usize),
    /// As many as the scalar argument with this index says.
    Length(usize),
    /// One 64-bit word for 64 rows.
    Bitmap,
    /// That many a group.
    PerGroup(u32),
    /// One 64-bit word for 64 groups.
    GroupBitmap,
    /// One for each row and dimension.
    Vectors,
    /// One for each dimension.
    Dimension,
    /// 8,192 a page.
    Pages,
    /// As many as `capacity` says.
    Capacity,
    /// Only the caller knows (`[[argument]]`).
    Unknown,
}

/// One argument of a C function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CArgument {
    /// Its name.
    pub name: String,
    /// Its type, or that of its elements.
    pub element: ElementType,
    /// What the function does with it.
    pub usage: ArgumentUse,
    /// How many elements it has.
    pub extent: Extent,
}

impl CArgument {
    fn scalar(name: impl Into<String>, element: ElementType) -> Self {
        Self {
            name: name.into(),
            element,
            usage: ArgumentUse::Scalar,
            extent: Extent::One,
        }
    }

    fn array(
        name: impl Into<String>,
        element: ElementType,
        usage: ArgumentUse,
        extent: Extent,
    ) -> Self {
        Self {
            name: name.into(),
            element,
            usage,
            extent,
        }
    }
}

impl fmt::Display for CArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, element) = (&self.name, self.element.c_name());
        match self.usage {
            ArgumentUse::Scalar => write!(f, "{element} {name}"),
            ArgumentUse::In => write!(f, "const {element} *{name}"),
            ArgumentUse::Out | ArgumentUse::InOut => write!(f, "{element} *{name}"),
        }
    }
}

/// One C function. It returns nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CFunction {
    /// Its name, as the module exports it.
    pub name: String,
    /// Its arguments, in order.
    pub arguments: Vec<CArgument>,
}

/// Its declaration in C.
impl fmt::Display for CFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "void {}(", self.name)?;
        for (i, argument) in self.arguments.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{argument}")?;
        }
        f.write_str(")")
    }
}

/// The functions of a kernel with a SQL signature: one; four of an aggregate, in the order init,
/// update, merge, finish.
pub(super) fn of_signature(
    kind: Kind,
    top: &str,
    signature: &Signature,
    kernel_nulls: bool,
    state_words: u32,
) -> Vec<CFunction> {
    match kind {
        Kind::Scalar | Kind::Filter | Kind::Search => {
            let mut arguments = parameters(&signature.parameters, kernel_nulls);
            arguments.push(CArgument::scalar("rows", ElementType::U32));
            results(kind, &signature.returns, kernel_nulls, &mut arguments);
            vec![function(top, "", arguments)]
        }
        Kind::Distance => vec![function(top, "", distance(&signature.parameters))],
        Kind::Aggregate => aggregate(top, signature, kernel_nulls, state_words),
        Kind::Table => vec![function(top, "", table(signature))],
    }
}

/// The C type of a value of `data_type`, or `None` for text, bytes and vectors.
pub(super) fn element_type(data_type: &DataType) -> Option<ElementType> {
    Some(match data_type {
        DataType::Boolean => ElementType::U8,
        DataType::Int16 => ElementType::I16,
        DataType::Int32 | DataType::Date32 => ElementType::I32,
        DataType::Int64 | DataType::Timestamp(..) | DataType::Decimal128(..) => ElementType::I64,
        DataType::Float32 => ElementType::F32,
        DataType::Float64 => ElementType::F64,
        _ => return None,
    })
}

fn function(top: &str, suffix: &str, arguments: Vec<CArgument>) -> CFunction {
    CFunction {
        name: format!("{top}{suffix}"),
        arguments,
    }
}

/// The arguments that parameters become.
fn parameters(parameters: &[Parameter], kernel_nulls: bool) -> Vec<CArgument> {
    let mut out = Vec::new();
    for parameter in parameters {
        let name = parameter.name.as_str();
        let constant = parameter.constant;
        let vector = |n: &i32| match constant {
            true => Extent::Fixed(n.unsigned_abs()),
            false => Extent::PerRow(n.unsigned_abs()),
        };
        match &parameter.data_type {
            DataType::Utf8View | DataType::BinaryView if constant => {
                let length = Extent::Length(out.len() + 1);
                out.push(CArgument::array(
                    name,
                    ElementType::U8,
                    ArgumentUse::In,
                    length,
                ));
                let name = format!("{name}_length");
                out.push(CArgument::scalar(name, ElementType::U32));
            }
            DataType::Utf8View | DataType::BinaryView => {
                let offsets = out.len();
                let name_of = |what: &str| format!("{name}_{what}");
                out.push(CArgument::array(
                    name_of("offsets"),
                    ElementType::U32,
                    ArgumentUse::In,
                    Extent::Offsets,
                ));
                out.push(CArgument::array(
                    name_of("bytes"),
                    ElementType::U8,
                    ArgumentUse::In,
                    Extent::Text(offsets),
                ));
            }
            DataType::FixedSizeList(_, n) => {
                out.push(CArgument::array(
                    name,
                    ElementType::F32,
                    ArgumentUse::In,
                    vector(n),
                ));
            }
            DataType::FixedSizeBinary(n) => {
                out.push(CArgument::array(
                    name,
                    ElementType::U8,
                    ArgumentUse::In,
                    vector(n),
                ));
            }
            other => {
                // The parser lets no other type through.
                let element = element_type(other).unwrap_or(ElementType::I64);
                out.push(match constant {
                    true => CArgument::scalar(name, element),
                    false => CArgument::array(name, element, ArgumentUse::In, Extent::PerRow(1)),
                });
            }
        }
        if kernel_nulls && !constant {
            out.push(CArgument::array(
                format!("{name}_valid"),
                ElementType::U64,
                ArgumentUse::In,
                Extent::Bitmap,
            ));
        }
    }
    out
}

fn results(kind: Kind, returns: &Returns, kernel_nulls: bool, out: &mut Vec<CArgument>) {
    let Returns::Scalar(data_type) = returns else {
        return;
    };
    match (kind, data_type) {
        (Kind::Filter, _) => {
            let words = CArgument::array(
                "selection",
                ElementType::U64,
                ArgumentUse::Out,
                Extent::Bitmap,
            );
            out.push(words);
        }
        (Kind::Search, _) => {
            let places = CArgument::array(
                "positions",
                ElementType::U32,
                ArgumentUse::Out,
                Extent::PerRow(1),
            );
            out.push(places);
        }
        (_, DataType::Utf8View | DataType::BinaryView) => {
            let capacity = Extent::Length(out.len() + 2);
            out.push(CArgument::array(
                "result_offsets",
                ElementType::U32,
                ArgumentUse::Out,
                Extent::Offsets,
            ));
            out.push(CArgument::array(
                "result_bytes",
                ElementType::U8,
                ArgumentUse::Out,
                capacity,
            ));
            out.push(CArgument::scalar("result_capacity", ElementType::U32));
        }
        (_, other) => {
            let element = element_type(other).unwrap_or(ElementType::I64);
            let result = CArgument::array("result", element, ArgumentUse::Out, Extent::PerRow(1));
            out.push(result);
        }
    }
    if kernel_nulls && kind == Kind::Scalar {
        out.push(CArgument::array(
            "result_valid",
            ElementType::U64,
            ArgumentUse::Out,
            Extent::Bitmap,
        ));
    }
}

fn distance(parameters: &[Parameter]) -> Vec<CArgument> {
    let element = match parameters.first().map(|p| &p.data_type) {
        Some(DataType::FixedSizeBinary(_)) => ElementType::U8,
        _ => ElementType::F32,
    };
    let name = |i: usize| parameters.get(i).map_or("", |p| p.name.as_str());
    vec![
        CArgument::array(name(0), element, ArgumentUse::In, Extent::Vectors),
        CArgument::array(name(1), element, ArgumentUse::In, Extent::Dimension),
        CArgument::scalar("dimension", ElementType::U32),
        CArgument::scalar("rows", ElementType::U32),
        CArgument::array(
            "result",
            ElementType::F64,
            ArgumentUse::Out,
            Extent::PerRow(1),
        ),
    ]
}

fn aggregate(
    top: &str,
    signature: &Signature,
    kernel_nulls: bool,
    state_words: u32,
) -> Vec<CFunction> {
    let states = |name: &str, usage| {
        CArgument::array(name, ElementType::U64, usage, Extent::PerGroup(state_words))
    };
    let groups = || CArgument::scalar("groups", ElementType::U32);
    let mut update = parameters(&signature.parameters, kernel_nulls);
    update.push(CArgument::array(
        "group",
        ElementType::U32,
        ArgumentUse::In,
        Extent::PerRow(1),
    ));
    update.push(CArgument::scalar("rows", ElementType::U32));
    update.push(states("states", ArgumentUse::InOut));
    update.push(groups());
    let result = match &signature.returns {
        Returns::Scalar(data_type) => element_type(data_type).unwrap_or(ElementType::I64),
        Returns::Table(_) => ElementType::I64,
    };
    vec![
        function(
            top,
            "_init",
            vec![states("states", ArgumentUse::Out), groups()],
        ),
        function(top, "_update", update),
        function(
            top,
            "_merge",
            vec![
                states("states", ArgumentUse::InOut),
                states("others", ArgumentUse::In),
                groups(),
            ],
        ),
        function(
            top,
            "_finish",
            vec![
                states("states", ArgumentUse::In),
                groups(),
                CArgument::array("result", result, ArgumentUse::Out, Extent::PerGroup(1)),
                CArgument::array(
                    "result_valid",
                    ElementType::U64,
                    ArgumentUse::Out,
                    Extent::GroupBitmap,
                ),
            ],
        ),
    ]
}

fn table(signature: &Signature) -> Vec<CArgument> {
    let mut arguments = vec![
        CArgument::array("pages", ElementType::U8, ArgumentUse::In, Extent::Pages),
        CArgument::scalar("page_count", ElementType::U32),
    ];
    // The places of constant text count from the first argument of all.
    let first = arguments.len();
    for mut argument in parameters(&signature.parameters, false) {
        if let Extent::Length(at) = &mut argument.extent {
            *at += first;
        }
        arguments.push(argument);
    }
    if let Returns::Table(columns) = &signature.returns {
        for column in columns {
            let element = element_type(column.data_type()).unwrap_or(ElementType::I64);
            let name = column.name().as_str();
            arguments.push(CArgument::array(
                name,
                element,
                ArgumentUse::Out,
                Extent::Capacity,
            ));
        }
    }
    arguments.push(CArgument::scalar("capacity", ElementType::U32));
    arguments.push(CArgument::array(
        "rows",
        ElementType::U32,
        ArgumentUse::Out,
        Extent::Fixed(1),
    ));
    arguments
}
