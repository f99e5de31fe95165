//! What the Tab key offers.

use super::catalog::{Catalog, Table, quoted};
use super::commands;
use super::completion::{Completion, words};
use super::keywords::{INDEX_KINDS, KEYWORDS, is_keyword};
use super::lex::{Kind, Token, tokens};

/// Completes `input` at the byte `cursor`.
pub(super) fn complete(input: &str, cursor: usize, catalog: &Catalog) -> Completion {
    let line_start = input[..cursor].rfind('\n').map_or(0, |at| at + 1);
    let before = &input[line_start..cursor];
    let statement = Statement::at(input, cursor);
    if statement.is_empty_before_cursor() && before.trim_start().starts_with(['.', '\\']) {
        return commands::complete(before, line_start, catalog);
    }
    statement.complete(catalog)
}

/// The statement that the cursor is in.
struct Statement<'a> {
    input: &'a str,
    /// Its significant pieces.
    tokens: Vec<Token>,
    /// Pieces that end before the word at the cursor, its qualifiers included.
    before: usize,
    /// Where the word at the cursor starts.
    start: usize,
    cursor: usize,
    is_in_text: bool,
    is_in_comment: bool,
}

impl<'a> Statement<'a> {
    fn at(input: &'a str, cursor: usize) -> Self {
        let mut all: Vec<Token> = Vec::new();
        let mut is_in_comment = false;
        for token in tokens(input) {
            let ends_here = input[token.range.clone()].eq(";");
            if ends_here && token.range.end <= cursor {
                // What was before is another statement's.
                all.clear();
                continue;
            }
            if ends_here {
                break;
            }
            let holds_cursor = token.range.start < cursor && cursor <= token.range.end;
            is_in_comment |= holds_cursor && token.kind == Kind::Comment;
            if token.is_significant() {
                all.push(token);
            }
        }
        let mut before = all.partition_point(|token| token.range.end <= cursor);
        let mut start = cursor;
        let mut is_in_text = false;
        let touching = all.iter().position(|token| {
            let is_word = matches!(token.kind, Kind::Word | Kind::Quoted | Kind::Text);
            is_word && token.range.start < cursor && cursor <= token.range.end
        });
        if let Some(touching) = touching {
            let token = &all[touching];
            let is_closed = !token.is_open && cursor == token.range.end;
            match token.kind {
                Kind::Text | Kind::Quoted if is_closed => {}
                kind => {
                    (before, start) = (touching, token.range.start);
                    is_in_text = kind == Kind::Text;
                }
            }
        }
        Self {
            input,
            tokens: all,
            before,
            start,
            cursor,
            is_in_text,
            is_in_comment,
        }
    }

    fn is_empty_before_cursor(&self) -> bool {
        // A dot at the start is a symbol, and so is a backslash.
        let first = self.tokens.first();
        first.is_none_or(|token| matches!(self.text(token), "." | "\\"))
    }

    fn text(&self, token: &Token) -> &'a str {
        &self.input[token.range.clone()]
    }

    /// The piece so many before the word at the cursor (and its qualifiers), in upper case.
    fn word_before(&self, end: usize, back: usize) -> String {
        let place = end.checked_sub(back);
        let token = place.and_then(|place| self.tokens.get(place));
        token.map_or(String::new(), |token| self.text(token).to_uppercase())
    }

    fn complete(&self, catalog: &Catalog) -> Completion {
        let typed = &self.input[self.start..self.cursor];
        if self.is_in_comment {
            return words(self.start, typed, []);
        }
        if self.is_in_text {
            return self.complete_text(catalog);
        }
        // Qualifiers: `schema.table.` or `alias.`.
        let mut end = self.before;
        let mut qualifiers = Vec::new();
        while end >= 2 && self.text(&self.tokens[end - 1]) == "." {
            qualifiers.insert(0, name_of(self.text(&self.tokens[end - 2])));
            end -= 2;
        }
        let previous = self.word_before(end, 1);
        let first = self.word_before(1, 1);
        if first == "SET" || first == "SHOW" || first == "RESET" {
            return self.complete_setting(catalog, end, &first);
        }
        if !qualifiers.is_empty() {
            return words(self.start, typed, self.qualified(catalog, &qualifiers));
        }
        if first == "DROP" && self.word_before(2, 1) == "INDEX" && end >= 2 {
            let indexes = catalog.indexes.iter();
            let names = indexes.map(|index| catalog.shown(&index.schema, &index.name));
            return words(self.start, typed, names);
        }
        if previous == "USING" && self.creates_index() {
            let kinds = INDEX_KINDS.iter().map(|kind| kind.to_string());
            return words(self.start, typed, kinds);
        }
        if self.wants_table(end, &previous) {
            let is_relation = matches!(previous.as_str(), "FROM" | "JOIN" | ",");
            let tables = catalog.tables.iter();
            let tables = tables.map(|table| catalog.shown(&table.schema, &table.name));
            let functions = catalog.table_functions.iter().filter(|_| is_relation);
            let functions = functions.map(|name| format!("{name}("));
            let schemas = catalog
                .schemas
                .iter()
                .map(|schema| format!("{}.", quoted(schema)));
            return words(self.start, typed, tables.chain(functions).chain(schemas));
        }
        let referenced = self.referenced(catalog);
        let mut tables: Vec<&Table> = referenced.iter().map(|(_, table)| *table).collect();
        if tables.is_empty() {
            // SELECT comes before FROM.
            tables = catalog.tables.iter().collect();
        }
        let columns = tables.into_iter().flat_map(|table| &table.columns);
        let columns = columns.map(|column| quoted(&column.name));
        let aliases = referenced.iter().map(|(alias, _)| quoted(alias));
        // Nobody looks through hundreds of functions.
        let functions = catalog.functions.iter().filter(|_| !typed.is_empty());
        let functions = functions.map(|name| format!("{name}("));
        let is_lower = typed.starts_with(|c: char| c.is_lowercase());
        let keywords = KEYWORDS.iter().map(|word| match is_lower {
            true => word.to_lowercase(),
            false => word.to_string(),
        });
        words(
            self.start,
            typed,
            columns.chain(aliases).chain(functions).chain(keywords),
        )
    }

    /// In a text: the first argument of a function that stands where a table stands is the name
    /// of a table or an index; after FROM it is a file.
    fn complete_text(&self, catalog: &Catalog) -> Completion {
        let (previous, function) = (
            self.word_before(self.before, 1),
            self.word_before(self.before, 2),
        );
        let is_relation = |name: &&String| name.eq_ignore_ascii_case(&function);
        if previous == "("
            && catalog
                .table_functions
                .iter()
                .any(|name| is_relation(&name))
        {
            let (start, typed) = (self.start + 1, &self.input[self.start + 1..self.cursor]);
            let tables = catalog
                .tables
                .iter()
                .map(|table| (&table.schema, &table.name));
            let indexes = catalog
                .indexes
                .iter()
                .map(|index| (&index.schema, &index.name));
            let names = tables.chain(indexes);
            let names = names.map(|(schema, name)| catalog.shown(schema, name));
            return words(start, typed, names);
        }
        match previous.as_str() {
            "FROM" | "JOIN" | "LOCATION" | "TO" | "," => Completion::File,
            _ => words(self.start, "", []),
        }
    }

    /// After SET: a name with its dots; after it `=` and `'value'`.
    fn complete_setting(&self, catalog: &Catalog, end: usize, first: &str) -> Completion {
        let start = match self.tokens.get(end) {
            Some(token) if token.range.start < self.cursor => token.range.start,
            _ => self.start,
        };
        let typed = &self.input[start..self.cursor];
        if end == 1 {
            let tables = ["TABLES", "COLUMNS", "FUNCTIONS", "ALL"].map(String::from);
            let tables = tables.into_iter().filter(|_| first == "SHOW");
            return words(start, typed, catalog.settings.iter().cloned().chain(tables));
        }
        words(start, typed, [])
    }

    fn creates_index(&self) -> bool {
        let words = [1, 2, 3].map(|end| self.word_before(end, 1));
        words[0] == "CREATE" && words[1..].iter().any(|word| word == "INDEX")
    }

    /// Whether a table's name comes at the place `end`.
    fn wants_table(&self, end: usize, previous: &str) -> bool {
        match previous {
            "FROM" | "JOIN" | "INTO" | "OVERWRITE" | "TABLE" | "VIEW" | "DESCRIBE" | "UPDATE" => {
                true
            }
            "DESC" => end == 1,
            "EXISTS" => self.word_before(1, 1) == "DROP",
            "ON" => self.creates_index(),
            "," => self.clause(end) == "FROM",
            _ => false,
        }
    }

    /// The word that opened the part of the statement that the place `end` is in.
    fn clause(&self, end: usize) -> String {
        let mut depth = 0;
        for token in self.tokens[..end].iter().rev() {
            let text = self.text(token);
            match text {
                ")" => depth += 1,
                "(" if depth == 0 => return "(".into(),
                "(" => depth -= 1,
                _ => {}
            }
            let word = text.to_uppercase();
            let opens = matches!(
                word.as_str(),
                "SELECT"
                    | "FROM"
                    | "WHERE"
                    | "GROUP"
                    | "ORDER"
                    | "HAVING"
                    | "SET"
                    | "VALUES"
                    | "ON"
                    | "BY"
                    | "LIMIT"
            );
            if opens && depth == 0 && token.kind == Kind::Word {
                return word;
            }
        }
        String::new()
    }

    /// Tables that the statement names, each by the name that its columns go by.
    fn referenced<'c>(&self, catalog: &'c Catalog) -> Vec<(String, &'c Table)> {
        let mut referenced = Vec::new();
        for place in 0..self.tokens.len() {
            let previous = self.word_before(place, 1);
            let is_word = matches!(self.tokens[place].kind, Kind::Word | Kind::Quoted);
            if !is_word || !self.wants_table(place, &previous) {
                continue;
            }
            let mut names = vec![name_of(self.text(&self.tokens[place]))];
            let mut next = place + 1;
            while next + 1 < self.tokens.len() && self.text(&self.tokens[next]) == "." {
                names.push(name_of(self.text(&self.tokens[next + 1])));
                next += 2;
            }
            let name = names.pop().unwrap_or_default();
            if self.word_before(next, 0) == "AS" {
                next += 1;
            }
            let alias = self.tokens.get(next).filter(|token| {
                token.kind == Kind::Quoted
                    || token.kind == Kind::Word && !is_keyword(self.text(token))
            });
            let alias = alias.map_or(name.clone(), |token| name_of(self.text(token)));
            let tables = catalog.tables_named(names.last().map(String::as_str), &name);
            referenced.extend(tables.into_iter().map(|table| (alias.clone(), table)));
        }
        referenced
    }

    /// What can follow `qualifiers` and a dot.
    fn qualified(&self, catalog: &Catalog, qualifiers: &[String]) -> Vec<String> {
        let referenced = self.referenced(catalog);
        let columns = |table: &Table| -> Vec<String> {
            table.columns.iter().map(|c| quoted(&c.name)).collect()
        };
        let of_tables = |tables: Vec<&Table>| tables.into_iter().flat_map(columns).collect();
        let mut names: Vec<String> = match qualifiers {
            [one] => {
                let tables = referenced.iter().filter(|(alias, _)| alias == one);
                let by_alias: Vec<_> = tables.flat_map(|(_, table)| columns(table)).collect();
                match by_alias.is_empty() {
                    true => of_tables(catalog.tables_named(None, one)),
                    false => by_alias,
                }
            }
            [schema, table] => of_tables(catalog.tables_named(Some(schema), table)),
            _ => vec![],
        };
        if let Some(schema) = qualifiers.last() {
            let tables = catalog
                .tables
                .iter()
                .filter(|table| table.schema == *schema);
            names.extend(tables.map(|table| quoted(&table.name)));
        }
        names
    }
}

/// The name that a word or a quoted name stands for.
fn name_of(text: &str) -> String {
    match text.chars().next() {
        Some(quote @ ('"' | '`')) => {
            let inner = text[1..].strip_suffix(quote).unwrap_or(&text[1..]);
            inner.replace(&format!("{quote}{quote}"), &quote.to_string())
        }
        _ => text.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog::{Column, Index};
    use super::*;

    fn catalog() -> Catalog {
        let table = |schema: &str, name: &str, columns: &[&str]| Table {
            schema: schema.into(),
            name: name.into(),
            kind: "table",
            columns: columns
                .iter()
                .map(|name| Column {
                    name: name.to_string(),
                    data_type: "Int64".into(),
                    nullable: true,
                })
                .collect(),
            checks: Vec::new(),
            rows: None,
        };
        Catalog {
            default_schema: "public".into(),
            schemas: vec!["public".into(), "sales".into()],
            tables: vec![
                table("public", "planet", &["name", "moons", "Mass"]),
                table("public", "plant", &["genus"]),
                table("sales", "order", &["id", "cents"]),
            ],
            indexes: vec![Index {
                schema: "public".into(),
                table: "planet".into(),
                name: "planet_pkey".into(),
                ..Index::default()
            }],
            functions: vec!["sum".into(), "substr".into()],
            table_functions: vec!["nearest".into(), "bfs".into()],
            settings: vec!["flashmesh.pushdown".into(), "datafusion.a.b".into()],
        }
    }

    /// The words offered where `|` stands.
    fn offered(marked: &str) -> Vec<String> {
        let cursor = marked.find('|').unwrap();
        let input = marked.replacen('|', "", 1);
        match complete(&input, cursor, &catalog()) {
            Completion::Words { start, words } => {
                assert!(start <= cursor, "{marked}");
                words
            }
            Completion::File => vec!["<file>".into()],
        }
    }

    #[test]
    fn tables_come_where_tables_stand() {
        for (marked, expected) in [
            ("SELECT * FROM pl|", vec!["planet", "plant"]),
            ("SELECT * FROM plan|et", vec!["planet", "plant"]),
            (
                "SELECT * FROM planet, plant p JOIN pla|",
                vec!["planet", "plant"],
            ),
            ("SELECT * FROM planet, pla|", vec!["planet", "plant"]),
            ("SELECT * FROM s|", vec!["sales.\"order\"", "sales."]),
            ("SELECT * FROM sales.|", vec!["\"order\""]),
            ("SELECT * FROM sales.o|", vec!["\"order\""]),
            ("SELECT * FROM ne|", vec!["nearest("]),
            ("INSERT INTO PLA|", vec!["planet", "plant"]),
            ("DROP TABLE IF EXISTS plane|", vec!["planet"]),
            ("SELECT 1; DESCRIBE plant|", vec!["plant"]),
            ("CREATE INDEX i ON pla|", vec!["planet", "plant"]),
            ("CREATE INDEX i ON planet USING l|", vec!["lsh"]),
            ("DROP INDEX |", vec!["planet_pkey"]),
            (
                "SELECT * FROM bfs('pla|",
                vec!["planet", "plant", "planet_pkey"],
            ),
            ("SELECT * FROM 'x|", vec!["<file>"]),
        ] {
            assert_eq!(offered(marked), expected, "{marked}");
        }
    }

    #[test]
    fn columns_are_those_of_the_tables_named() {
        for (marked, expected) in [
            (
                "SELECT m| FROM planet",
                vec!["moons", "\"Mass\"", "matched", "merge"],
            ),
            ("SELECT name FROM planet WHERE moo|", vec!["moons"]),
            (
                "SELECT p.| FROM planet AS p",
                vec!["name", "moons", "\"Mass\""],
            ),
            (
                "SELECT p.mo|, 1 FROM sales.\"order\" o, planet p",
                vec!["moons"],
            ),
            ("SELECT o.c| FROM sales.\"order\" o", vec!["cents"]),
            ("SELECT planet.n|", vec!["name"]),
            ("SELECT sales.\"order\".i|", vec!["id"]),
            ("SELECT genu| FROM planet; SELECT genus FROM plant", vec![]),
            ("SELECT sum(moo| FROM planet", vec!["moons"]),
            ("SELECT su|", vec!["sum(", "substr(", "substring"]),
            ("SELECT moo|", vec!["moons"]),
        ] {
            assert_eq!(offered(marked), expected, "{marked}");
        }
    }

    #[test]
    fn keywords_settings_and_commands() {
        for (marked, expected) in [
            ("SELE|", vec!["SELECT"]),
            ("sele|", vec!["select"]),
            ("SET flashmesh.pu|", vec!["flashmesh.pushdown"]),
            ("SET f|", vec!["flashmesh.pushdown"]),
            ("SHOW TAB|", vec!["TABLES"]),
            ("SET flashmesh.pushdown = |", vec!["flashmesh.pushdown"; 0]),
            ("-- sele|", vec![]),
            ("SELECT 'sele|", vec![]),
            (".ti|", vec![".timer"]),
            (".mode nd|", vec!["ndjson"]),
            (".schema plane|", vec!["planet"]),
            (".read |", vec!["<file>"]),
        ] {
            assert_eq!(offered(marked), expected, "{marked}");
        }
    }

    #[test]
    fn a_cursor_anywhere_in_anything_is_fine() {
        let input = "SELECT \"a é\", 'ü;' FROM p.q.r x, (SELECT 1) /* y */; .mode\n SET a.b = $$";
        let ends = (0..=input.len()).filter(|at| input.is_char_boundary(*at));
        for cursor in ends {
            complete(input, cursor, &catalog());
            complete(&input[..cursor], cursor, &catalog());
            complete(&input[cursor..], 0, &catalog());
        }
    }
}
