//! Reads vector files; `tests/vectors/README.md` describes the format. What it does not allow is
//! an error: a file that is misread would let a wrong kernel through.

use std::ops::RangeInclusive;

use flashmesh_storage::kernel::ScalarArgument;

const FIRST_LINE: &str = "# flashmesh vectors 1";

/// The cases of one kernel.
#[derive(Debug)]
pub struct Vectors {
    pub kernel: String,
    /// Greatest relative difference of floats; 0: the same bits.
    pub tolerance: f64,
    pub cases: Vec<Case>,
}

#[derive(Debug)]
pub struct Case {
    /// Number and words.
    pub title: String,
    pub calls: Vec<Call>,
}

#[derive(Debug)]
pub struct Call {
    pub function: String,
    pub arguments: Vec<Given>,
}

/// An argument of a call.
#[derive(Debug)]
pub struct Given {
    pub name: String,
    pub element: Element,
    pub content: Content,
}

#[derive(Debug)]
pub enum Content {
    Scalar(ScalarArgument),
    In(Vec<u8>),
    /// What must stand there after the call.
    Out(Vec<u8>),
    InOut {
        before: Vec<u8>,
        after: Vec<u8>,
    },
    /// So many bytes that the function may write as it likes.
    Any(usize),
    /// So many bytes that the calls of a case share by the array's name.
    Keep {
        bytes: usize,
        array: String,
    },
}

/// A type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    pub name: &'static str,
    pub c_name: &'static str,
    pub bytes: usize,
}

const fn element(name: &'static str, c_name: &'static str, bytes: usize) -> Element {
    Element {
        name,
        c_name,
        bytes,
    }
}

const ELEMENTS: [Element; 10] = [
    element("u8", "uint8_t", 1),
    element("i8", "int8_t", 1),
    element("u16", "uint16_t", 2),
    element("i16", "int16_t", 2),
    element("u32", "uint32_t", 4),
    element("i32", "int32_t", 4),
    element("u64", "uint64_t", 8),
    element("i64", "int64_t", 8),
    element("f32", "float", 4),
    element("f64", "double", 8),
];

impl Element {
    pub fn is_float(self) -> bool {
        self.name.starts_with('f')
    }

    fn parse(name: &str) -> Result<Self, String> {
        let found = ELEMENTS.into_iter().find(|element| element.name == name);
        found.ok_or_else(|| format!("'{name}' is no type"))
    }

    /// The range of an integer type.
    fn range(self) -> RangeInclusive<i128> {
        let bits = 8 * self.bytes as u32;
        match self.name.starts_with('u') {
            true => 0..=(1i128 << bits) - 1,
            false => -(1i128 << (bits - 1))..=(1i128 << (bits - 1)) - 1,
        }
    }
}

impl Call {
    /// The argument of that name.
    fn given(&self, name: &str) -> &Given {
        let mut arguments = self.arguments.iter();
        let found = arguments.find(|given| given.name == name);
        found.unwrap_or_else(|| panic!("{} has no argument '{name}'", self.function))
    }

    /// An array as the function reads it.
    pub fn input(&self, name: &str) -> &[u8] {
        match &self.given(name).content {
            Content::In(bytes) | Content::InOut { before: bytes, .. } => bytes,
            other => panic!("'{name}' is {other:?}"),
        }
    }

    /// An array as the function must leave it.
    pub fn expected(&self, name: &str) -> &[u8] {
        match &self.given(name).content {
            Content::Out(bytes) | Content::InOut { after: bytes, .. } => bytes,
            other => panic!("'{name}' is {other:?}"),
        }
    }

    /// A scalar of at most 32 bits, unsigned.
    pub fn u32(&self, name: &str) -> u32 {
        match self.given(name).content {
            Content::Scalar(ScalarArgument::I32(value)) => value as u32,
            ref other => panic!("'{name}' is {other:?}"),
        }
    }

    pub fn f64(&self, name: &str) -> f64 {
        match self.given(name).content {
            Content::Scalar(ScalarArgument::F64(value)) => value,
            ref other => panic!("'{name}' is {other:?}"),
        }
    }
}

/// Reads a vector file's text.
pub fn parse(text: &str) -> Result<Vectors, String> {
    let mut reader = Reader::default();
    let mut lines = text.lines();
    if lines.next() != Some(FIRST_LINE) {
        return Err(format!("line 1: not '{FIRST_LINE}'"));
    }
    for (number, line) in (2..).zip(lines) {
        if !line.starts_with('#') {
            let words: Vec<&str> = line.split(' ').collect();
            reader
                .line(&words)
                .map_err(|problem| format!("line {number}: {problem}"))?;
        }
    }
    if !text.ends_with('\n') || reader.open.is_some() || reader.cases.is_empty() {
        return Err("the file ends early".to_owned());
    }
    Ok(Vectors {
        kernel: reader.kernel.unwrap_or_default(),
        tolerance: reader.tolerance.unwrap_or_default(),
        cases: reader.cases,
    })
}

#[derive(Default)]
struct Reader {
    kernel: Option<String>,
    tolerance: Option<f64>,
    cases: Vec<Case>,
    open: Option<Case>,
}

impl Reader {
    fn line(&mut self, words: &[&str]) -> Result<(), String> {
        match *words {
            ["kernel", name] if self.kernel.is_none() && !name.is_empty() => {
                self.kernel = Some(name.to_owned());
            }
            ["tolerance", number] if self.kernel.is_some() && self.tolerance.is_none() => {
                let number: f64 = number.parse().map_err(|_| "no number".to_owned())?;
                if !(0.0..1.0).contains(&number) {
                    return Err("a tolerance is from 0 to 1".to_owned());
                }
                self.tolerance = Some(number);
            }
            ["case", number, ref title @ ..] if self.tolerance.is_some() && self.open.is_none() => {
                if number != (self.cases.len() + 1).to_string() || title.is_empty() {
                    return Err("cases are numbered from 1 and have a title".to_owned());
                }
                self.open = Some(Case {
                    title: words[1..].join(" "),
                    calls: Vec::new(),
                });
            }
            ["call", function] if !function.is_empty() => {
                let case = self.open.as_mut().ok_or("a call outside of a case")?;
                case.calls.push(Call {
                    function: function.to_owned(),
                    arguments: Vec::new(),
                });
            }
            ["end"] => {
                let case = self.open.take().ok_or("an end outside of a case")?;
                if case.calls.is_empty() {
                    return Err("a case without a call".to_owned());
                }
                self.cases.push(case);
            }
            _ => self.argument(words)?,
        }
        Ok(())
    }

    fn argument(&mut self, words: &[&str]) -> Result<(), String> {
        let &[usage, name, element, ref content @ ..] = words else {
            return Err(format!("'{}' is no line of a vector file", words.join(" ")));
        };
        let element = Element::parse(element)?;
        let array = |text: &str| array(text, element);
        let content = match (usage, content) {
            ("scalar", [number]) => Content::Scalar(scalar(number, element)?),
            ("in", [content]) => Content::In(array(content)?),
            ("out", [content]) => Content::Out(array(content)?),
            ("inout", [before, after]) => {
                let (before, after) = (array(before)?, array(after)?);
                if before.len() != after.len() {
                    return Err("an array that changes its length".to_owned());
                }
                Content::InOut { before, after }
            }
            ("any", [count]) => Content::Any(bytes_of(count, element)?),
            ("keep", [count, array]) if !array.is_empty() => Content::Keep {
                bytes: bytes_of(count, element)?,
                array: (*array).to_owned(),
            },
            _ => return Err(format!("'{}' is no line of a vector file", words.join(" "))),
        };
        let case = self.open.as_mut().ok_or("an argument outside of a case")?;
        if let Content::Keep { bytes, array } = &content {
            check_kept(case, *bytes, array, element)?;
        }
        let call = case.calls.last_mut().ok_or("an argument before a call")?;
        if name.is_empty() || call.arguments.iter().any(|given| given.name == name) {
            return Err(format!("two arguments '{name}'"));
        }
        call.arguments.push(Given {
            name: name.to_owned(),
            element,
            content,
        });
        Ok(())
    }
}

/// Whether an array that calls share is the same in all of them, and once in each.
fn check_kept(case: &Case, bytes: usize, array: &str, element: Element) -> Result<(), String> {
    for (back, call) in case.calls.iter().rev().enumerate() {
        for given in &call.arguments {
            let Content::Keep {
                bytes: other_bytes,
                array: other,
            } = &given.content
            else {
                continue;
            };
            if other == array && back == 0 {
                return Err(format!("the call has '{array}' twice"));
            }
            if other == array && (*other_bytes != bytes || given.element != element) {
                return Err(format!("'{array}' was of another type or length"));
            }
        }
    }
    Ok(())
}

fn number(text: &str) -> Result<usize, String> {
    let canonical = text == "0" || !text.starts_with(['0', '+']);
    let parsed = text.parse().ok().filter(|_| canonical);
    parsed.ok_or_else(|| format!("'{text}' is no count"))
}

fn bytes_of(count: &str, element: Element) -> Result<usize, String> {
    let bytes = number(count)?.checked_mul(element.bytes);
    bytes.ok_or_else(|| format!("{count} elements are too many"))
}

fn scalar(text: &str, element: Element) -> Result<ScalarArgument, String> {
    let problem = || format!("'{text}' is no {}", element.name);
    if text.starts_with('+') {
        return Err(problem());
    }
    match element.name {
        "f32" => return text.parse().map(ScalarArgument::F32).map_err(|_| problem()),
        "f64" => return text.parse().map(ScalarArgument::F64).map_err(|_| problem()),
        _ => {}
    }
    let value: i128 = text.parse().map_err(|_| problem())?;
    if !element.range().contains(&value) {
        return Err(problem());
    }
    Ok(match element.bytes {
        8 => ScalarArgument::I64(value as i64),
        _ => ScalarArgument::I32(value as i32),
    })
}

fn array(text: &str, element: Element) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let pieces: &[&str] = &match text {
        "-" => Vec::new(),
        _ => text.split('+').collect(),
    };
    for piece in pieces {
        if let Some(zeros) = piece.strip_prefix('~') {
            let zeros = number(zeros)?;
            if zeros == 0 {
                return Err("a run of no zeros".to_owned());
            }
            bytes.resize(bytes.len() + zeros, 0);
        } else {
            hexadecimal(piece, &mut bytes)?;
        }
    }
    match bytes.len().is_multiple_of(element.bytes) {
        true => Ok(bytes),
        false => Err(format!(
            "{} bytes are no array of {}",
            bytes.len(),
            element.name
        )),
    }
}

fn hexadecimal(piece: &str, bytes: &mut Vec<u8>) -> Result<(), String> {
    let digit = |byte: &u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits: Option<Vec<u8>> = piece.as_bytes().iter().map(digit).collect();
    let digits = digits.filter(|d| !d.is_empty() && d.len() % 2 == 0);
    let digits = digits.ok_or_else(|| format!("'{piece}' is no pairs of hexadecimal digits"))?;
    bytes.extend(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]));
    Ok(())
}

#[test]
fn a_file_is_read_as_the_format_says() {
    let text = "# flashmesh vectors 1\nkernel f\n# a comment\ntolerance 1e-12\n\
                case 1 two calls\ncall f_init\nkeep s u64 2 states\nscalar n u32 4294967295\n\
                call f\nkeep s u64 2 states\nin a i16 0a0b+~4+0c0d\nout b u8 -\n\
                inout c f32 00000000 ~4\nany d u8 3\nscalar x f64 -inf\nscalar y i64 -5\nend\n";
    let vectors = parse(text).unwrap();
    assert_eq!((vectors.kernel.as_str(), vectors.tolerance), ("f", 1e-12));
    let [case] = vectors.cases.as_slice() else {
        panic!("{vectors:?}")
    };
    assert_eq!((case.title.as_str(), case.calls.len()), ("1 two calls", 2));
    let call = &case.calls[1];
    assert_eq!(call.input("a"), [0x0a, 0x0b, 0, 0, 0, 0, 0x0c, 0x0d]);
    assert!(call.expected("b").is_empty());
    assert_eq!(call.expected("c"), [0; 4]);
    assert!(matches!(call.given("d").content, Content::Any(3)));
    assert_eq!(call.f64("x"), f64::NEG_INFINITY);
    assert_eq!(case.calls[0].u32("n"), u32::MAX);
}

#[test]
fn what_the_format_does_not_allow_is_refused() {
    let whole =
        |body: &str| format!("# flashmesh vectors 1\nkernel f\ntolerance 0\ncase 1 t\n{body}end\n");
    parse(&whole("call f\nin a u8 00\n")).unwrap();
    for (body, problem) in [
        ("", "without a call"),
        ("in a u8 00\n", "before a call"),
        ("call f\nin a u8 0\n", "hexadecimal"),
        ("call f\nin a u8 0A\n", "hexadecimal"),
        ("call f\nin a u8 00+\n", "hexadecimal"),
        ("call f\nin a u8 ~0\n", "no zeros"),
        ("call f\nin a u16 00\n", "no array of u16"),
        ("call f\nin a u24 00\n", "no type"),
        ("call f\nin a u8\n", "no line"),
        ("call f\nin a u8 00 00\n", "no line"),
        ("call f\nin  a u8 00\n", "no type"),
        ("call f\nin a u8 00\nin a u8 00\n", "two arguments"),
        ("call f\ninout a u8 00 0000\n", "changes its length"),
        ("call f\nscalar a u8 256\n", "no u8"),
        ("call f\nscalar a i8 -129\n", "no i8"),
        ("call f\nscalar a u32 1.0\n", "no u32"),
        ("call f\nscalar a f64 one\n", "no f64"),
        ("call f\nkeep a u8 1 s\nkeep b u8 1 s\n", "twice"),
        (
            "call f\nkeep a u8 1 s\ncall f\nkeep a u8 2 s\n",
            "another type",
        ),
        ("call f\nmaybe a u8 00\n", "no line"),
        ("call f\n\n", "no line"),
        ("call f\ncase 2 t\n", "no type"),
    ] {
        let error = parse(&whole(body)).unwrap_err();
        assert!(error.contains(problem), "{body:?}: {error}");
    }
    for text in [
        "",
        "# flashmesh vectors 2\n",
        "# flashmesh vectors 1\nkernel f\ntolerance 0\n",
        "# flashmesh vectors 1\nkernel f\ntolerance 0\ncase 1 t\ncall f\n",
        "# flashmesh vectors 1\nkernel f\ntolerance 0\ncase 2 t\ncall f\nend\n",
        "# flashmesh vectors 1\nkernel f\ntolerance 0\ncase 1 t\ncall f\nend",
        "# flashmesh vectors 1\ntolerance 0\nkernel f\ncase 1 t\ncall f\nend\n",
        "# flashmesh vectors 1\nkernel f\ntolerance nan\ncase 1 t\ncall f\nend\n",
    ] {
        parse(text).unwrap_err();
    }
}
