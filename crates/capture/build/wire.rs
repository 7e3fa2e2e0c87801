//! Generates the Rust side of `wire.h`. Parses only the subset of C that the header is limited to
//! and rejects everything else, so that the two sides stay in sync.

/// Returns the Rust source for a header.
pub(crate) fn generate(header: &str) -> Result<String, String> {
    let text = strip_comments(header);
    let mut out = String::from("// Generated from wire.h; do not edit.\n\n");
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("#define ") {
            out.push_str(&define(rest)?);
        } else if line.starts_with("#ifndef") || line.starts_with("#endif") {
        } else if let Some(name) = line.strip_prefix("enum ").and_then(|l| l.strip_suffix(" {")) {
            out.push_str(&format!("// enum {name}\n"));
            for line in lines.by_ref().take_while(|l| *l != "};") {
                out.push_str(&enumerator(line)?);
            }
        } else if let Some(name) = line.strip_prefix("struct ").and_then(|l| l.strip_suffix(" {")) {
            out.push_str(&structure(name, lines.by_ref().take_while(|l| *l != "};"))?);
        } else if let Some(rest) = line.strip_prefix("VS_SIZE(").and_then(|l| l.strip_suffix(");"))
        {
            let (name, bytes) = rest.split_once(',').ok_or("bad VS_SIZE")?;
            let name = camel(name.trim());
            let bytes = bytes.trim();
            out.push_str(&format!(
                "const _: () = assert!(::std::mem::size_of::<{name}>() == {bytes});\n\n"
            ));
        } else {
            return Err(format!("wire.h: unsupported line: {line}"));
        }
    }
    Ok(out)
}

fn strip_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("/*") {
        out.push_str(&rest[..start]);
        match rest[start..].find("*/") {
            Some(end) => rest = &rest[start + end + 2..],
            None => return out,
        }
    }
    out + rest
}

fn define(rest: &str) -> Result<String, String> {
    let mut words = rest.split_whitespace();
    let name = words.next().ok_or("empty #define")?;
    match words.next() {
        None => Ok(String::new()), // the include guard
        Some(value) => {
            let value: u64 = value.parse().map_err(|_| format!("#define {name}: not a number"))?;
            Ok(format!("/// See `wire.h`.\npub const {name}: usize = {value};\n"))
        }
    }
}

fn enumerator(line: &str) -> Result<String, String> {
    let (name, value) =
        line.trim_end_matches(',').split_once('=').ok_or(format!("enumerator: {line}"))?;
    let value: u32 = value.trim().parse().map_err(|_| format!("enumerator: {line}"))?;
    Ok(format!("/// See `wire.h`.\npub const {}: u32 = {value};\n", name.trim()))
}

fn structure<'a>(name: &str, fields: impl Iterator<Item = &'a str>) -> Result<String, String> {
    let mut out = format!(
        "/// See `wire.h`.\n#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]\n#[repr(C)]\npub struct {} {{\n",
        camel(name)
    );
    let mut reads = String::new();
    let mut writes = String::new();
    for line in fields {
        let field = line.strip_suffix(';').ok_or(format!("field: {line}"))?;
        let (ty, name) = field.rsplit_once(' ').ok_or(format!("field: {line}"))?;
        let ty = rust_type(ty.trim())?;
        let (name, ty) = match name.split_once('[') {
            None => (name, ty),
            Some((name, count)) => (name, format!("[{ty}; {}]", count.trim_end_matches(']'))),
        };
        out.push_str(&format!("    /// See `wire.h`.\n    pub {name}: {ty},\n"));
        reads.push_str(&format!("            {name}: reader.take()?,\n"));
        writes.push_str(&format!("        self.{name}.to_wire(out);\n"));
    }
    out.push_str("}\n");
    let camel = camel(name);
    // Natural alignment with explicit padding makes field order the byte order. One length check
    // up front lets the compiler omit those of the fields.
    out.push_str(&format!(
        "impl FromWire for {camel} {{\n    #[inline]\n    fn from_wire(reader: &mut WireReader<'_>) -> Option<Self> {{\n        reader.has(::std::mem::size_of::<Self>())?;\n        Some(Self {{\n{reads}        }})\n    }}\n}}\n"
    ));
    out.push_str(&format!(
        "impl ToWire for {camel} {{\n    fn to_wire(&self, out: &mut Vec<u8>) {{\n{writes}    }}\n}}\n"
    ));
    Ok(out)
}

fn rust_type(c: &str) -> Result<String, String> {
    Ok(match c {
        "__u8" => "u8".into(),
        "__u16" => "u16".into(),
        "__u32" => "u32".into(),
        "__u64" => "u64".into(),
        "__s32" => "i32".into(),
        other => camel(other.strip_prefix("struct ").ok_or(format!("type {other}"))?),
    })
}

/// `vs_call_descriptor` → `CallDescriptor`.
fn camel(name: &str) -> String {
    name.trim_start_matches("vs_")
        .split('_')
        .map(|word| word[..1].to_uppercase() + &word[1..])
        .collect()
}
