//! Parses and links a schema and finds the message type of its records.
//!
//! Never opens a file: the imports of a schema are its references, other files of a descriptor set, or well-known files.
//!
//! Before files are linked, they are reduced to their messages and enums. Options, services, and extensions do not affect how records are
//! read. Only syntax errors in them are reported.

use super::builtin;
use crate::format::{Body, Message, Schema, SchemaError};
use data_encoding::BASE64;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumOptions, FileDescriptorProto, FileDescriptorSet, MessageOptions,
};
use prost_reflect::{DescriptorPool, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor};
use protox::file::{File, FileResolver as _, GoogleFileResolver};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

const FILES_MAX: usize = 1_000;
/// The name of the schema's own file. No import can have this name.
const OWN: &str = ".";
const NAMES_MAX: usize = 8;

type Files = BTreeMap<String, FileDescriptorProto>;

/// The linked schema, which is computed on first use. Comparisons of schemas ignore it, because it depends only on the other fields of
/// [`Schema`].
#[derive(Clone, Debug, Default)]
pub(in crate::format) struct Once(OnceLock<Result<FileDescriptor, SchemaError>>);

impl PartialEq for Once {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Once {}

/// Returns the descriptor of the records' message type.
pub(super) fn message(schema: &Schema, message: Message<'_>) -> Result<MessageDescriptor, SchemaError> {
    let own = schema.linked.0.get_or_init(|| linked(schema)).as_ref().map_err(SchemaError::clone)?;
    match message {
        Message::Named(name) => {
            let found = own.parent_pool().get_message_by_name(name.strip_prefix('.').unwrap_or(name));
            found.ok_or_else(|| SchemaError(format!("the schema has no message `{name}`; it has {}", names(own))))
        }
        Message::Indexes([]) => first(own),
        Message::Indexes(indexes) => by_indexes(own, indexes),
        Message::First if matches!(schema.body, Body::Descriptors(_)) && own.messages().len() > 1 => {
            Err(SchemaError(format!("the last file of the descriptor set has {}: set `message` to the type of the records", names(own))))
        }
        Message::First => first(own),
    }
}

/// Links the schema's own file with all files that it needs.
fn linked(schema: &Schema) -> Result<FileDescriptor, SchemaError> {
    let mut files = Files::new();
    read(&schema.body, OWN, &mut files)?;
    for reference in &schema.references {
        let named = |SchemaError(error)| SchemaError(format!("in its reference `{}`, {error}", reference.name));
        if reference.name == OWN {
            return Err(named(SchemaError("the name is not a valid import path".to_owned())));
        }
        read(&reference.body, &reference.name, &mut files).map_err(named)?;
    }
    link(needed(files)?)?.get_file_by_name(OWN).ok_or_else(|| SchemaError("the linked schema lacks its own file".to_owned()))
}

fn first(own: &FileDescriptor) -> Result<MessageDescriptor, SchemaError> {
    own.messages().next().ok_or_else(|| SchemaError("the schema has no message".to_owned()))
}

fn names(own: &FileDescriptor) -> String {
    let all = own.messages().len();
    let mut names: Vec<_> = own.messages().take(NAMES_MAX).map(|message| format!("`{}`", message.full_name())).collect();
    match all.checked_sub(names.len()) {
        None | Some(0) => {}
        Some(more) => names.push(format!("{more} more")),
    }
    if names.is_empty() { "no message".to_owned() } else { names.join(", ") }
}

/// Returns the message type for the message indexes of a record.
///
/// Some clients count only the messages that the file declares. Other clients also count the messages that the compiler generates for maps
/// and groups. If the two ways of counting lead to different messages, the indexes are ambiguous and are rejected.
fn by_indexes(own: &FileDescriptor, indexes: &[usize]) -> Result<MessageDescriptor, SchemaError> {
    let wrong = || SchemaError(format!("the schema has no message at the indexes {indexes:?}; it has {}", names(own)));
    let (&first, rest) = indexes.split_first().ok_or_else(wrong)?;
    let mut message = own.messages().nth(first).ok_or_else(wrong)?;
    for &index in rest {
        let group = |field: FieldDescriptor| match field.kind() {
            Kind::Message(group) if field.is_group() => Some(group.full_name().to_owned()),
            _ => None,
        };
        let groups: BTreeSet<_> = message.fields().filter_map(group).collect();
        let is_declared = |child: &MessageDescriptor| !child.is_map_entry() && !groups.contains(child.full_name());
        let declared = message.child_messages().filter(is_declared).nth(index);
        let counted = message.child_messages().nth(index).filter(is_declared);
        message = match (declared, counted) {
            (Some(one), Some(other)) if one != other => {
                let (one, other) = (one.full_name(), other.full_name());
                return Err(SchemaError(format!(
                    "the message indexes can mean `{one}` or `{other}`, because clients count maps and groups differently: use a top-level message for records"
                )));
            }
            (one, other) => one.or(other).ok_or_else(wrong)?,
        };
    }
    Ok(message)
}

/// Adds the files of a schema to `files`. The schema's own file is added as `name`, and the other files of a descriptor set keep their
/// names.
fn read(body: &Body, name: &str, files: &mut Files) -> Result<(), SchemaError> {
    let own = match body {
        Body::Text(text) if is_base64(text) => {
            let packed: String = text.split_ascii_whitespace().collect();
            let decoded = BASE64.decode(packed.as_bytes()).ok().and_then(|bytes| FileDescriptorProto::decode(bytes.as_slice()).ok());
            decoded.ok_or_else(|| SchemaError("the schema is neither a .proto file nor a FileDescriptorProto in base64".to_owned()))?
        }
        Body::Text(text) => parse(name, text)?,
        Body::Descriptors(bytes) => {
            let set = FileDescriptorSet::decode(bytes.as_slice());
            let mut set = set.map_err(|error| SchemaError(format!("the schema is not a valid FileDescriptorSet: {error}")))?;
            let own = set.file.pop().ok_or_else(|| SchemaError("the descriptor set has no file".to_owned()))?;
            for file in set.file {
                files.entry(file.name().to_owned()).or_insert(file);
            }
            own
        }
    };
    files.insert(name.to_owned(), own);
    Ok(())
}

/// True if a text is in base64. Every `.proto` file that is not empty has other characters, such as semicolons.
fn is_base64(text: &str) -> bool {
    let is_of_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte) || byte.is_ascii_whitespace();
    !text.trim().is_empty() && text.bytes().all(is_of_base64)
}

fn parse(name: &str, text: &str) -> Result<FileDescriptorProto, SchemaError> {
    let parsed = File::from_source(name, text).map(FileDescriptorProto::from);
    parsed.map_err(|error| {
        let is_edition = text.lines().any(|line| line.trim_start().starts_with("edition"));
        // The line and the column are only in the `Debug` output of the error.
        let what = format!("{error:?}");
        let what = what.strip_prefix(&format!("{name}:")).unwrap_or(&what).trim();
        SchemaError(if is_edition { editions() } else { format!("the schema is not a valid .proto file: {what}") })
    })
}

fn editions() -> String {
    "the schema uses an edition, which is not supported: use proto2 or proto3".to_owned()
}

/// Returns the schema's own file and all of its direct and indirect imports, each of them reduced.
fn needed(mut files: Files) -> Result<Files, SchemaError> {
    let (mut needed, mut names) = (Files::new(), vec![(OWN.to_owned(), String::new())]);
    while let Some((name, by)) = names.pop() {
        if needed.contains_key(&name) {
            continue;
        }
        let found = match files.remove(&name) {
            Some(file) => Some(file),
            None => well_known(&name)?,
        };
        let mut file = found.ok_or_else(|| {
            let by = if by == OWN { String::new() } else { format!(" by `{by}`") };
            SchemaError(format!("`{name}` is imported{by} but is neither a reference nor in a descriptor set"))
        })?;
        if needed.len() == FILES_MAX {
            return Err(SchemaError(format!("the schema needs more than {FILES_MAX} files")));
        }
        reduce(&mut file, &name)?;
        names.extend(file.dependency.iter().map(|import| (import.clone(), name.clone())));
        needed.insert(name, file);
    }
    Ok(needed)
}

fn well_known(name: &str) -> Result<Option<FileDescriptorProto>, SchemaError> {
    match (GoogleFileResolver::new().open_file(name), builtin::text(name)) {
        (Ok(file), _) => Ok(Some(file.into())),
        (_, Some(text)) => parse(name, &text).map(Some),
        _ => Ok(None),
    }
}

/// Removes everything that does not affect how records are read.
fn reduce(file: &mut FileDescriptorProto, name: &str) -> Result<(), SchemaError> {
    fn reduce_enum(symbols: &mut EnumDescriptorProto) {
        // The removed options may contain `allow_alias`. Set it for every enum. Otherwise, an enum with several names for a number could
        // not be linked.
        symbols.options = Some(EnumOptions { allow_alias: Some(true), ..EnumOptions::default() });
        symbols.value.iter_mut().for_each(|value| value.options = None);
    }
    // The recursion cannot overflow the stack, because the parser accepts at most 31 nested messages, and the decoder at most 100.
    fn reduce_message(message: &mut DescriptorProto) {
        let is_map_entry = message.options.as_ref().is_some_and(MessageOptions::map_entry);
        message.options = is_map_entry.then(|| MessageOptions { map_entry: Some(true), ..MessageOptions::default() });
        message.extension.clear();
        message.extension_range.clear();
        message.field.iter_mut().for_each(|field| field.options = None);
        message.oneof_decl.iter_mut().for_each(|oneof| oneof.options = None);
        message.enum_type.iter_mut().for_each(reduce_enum);
        message.nested_type.iter_mut().for_each(reduce_message);
    }
    match file.syntax() {
        "proto2" | "proto3" => {}
        "" => file.syntax = None,
        "editions" => return Err(SchemaError(editions())),
        other => return Err(SchemaError(format!("the syntax `{other}` is not supported: use proto2 or proto3"))),
    }
    file.name = Some(name.to_owned());
    file.options = None;
    file.source_code_info = None;
    file.service.clear();
    file.extension.clear();
    file.enum_type.iter_mut().for_each(reduce_enum);
    file.message_type.iter_mut().for_each(reduce_message);
    Ok(())
}

/// Links files, which resolves the names of types.
fn link(mut files: Files) -> Result<DescriptorPool, SchemaError> {
    // prost-reflect does not follow public imports of public imports. So each file gets a direct import of every file that it can see.
    // These files are known only after the imports of a file have been processed, so circular imports are not supported.
    let mut exports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut ordered = Vec::new();
    while !files.is_empty() {
        let is_ready = |file: &FileDescriptorProto| file.dependency.iter().all(|import| exports.contains_key(import));
        let ready: Vec<_> = files.iter().filter(|(_, file)| is_ready(file)).map(|(name, _)| name.clone()).collect();
        if ready.is_empty() {
            return Err(SchemaError("files import each other in a circle".to_owned()));
        }
        for (name, mut file) in ready.into_iter().filter_map(|name| files.remove_entry(&name)) {
            let public = file.public_dependency.iter().filter_map(|&index| file.dependency.get(usize::try_from(index).ok()?));
            let mut exported: BTreeSet<_> = public.filter_map(|import| exports.get(import)).flatten().cloned().collect();
            let visible: BTreeSet<_> = file.dependency.iter().filter_map(|import| exports.get(import)).flatten().cloned().collect();
            exported.insert(name.clone());
            file.dependency = visible.into_iter().collect();
            file.public_dependency.clear();
            file.weak_dependency.clear();
            exports.insert(name, exported);
            ordered.push(file);
        }
    }
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_protos(ordered).map_err(|error| {
        let what = format!("{error:?}");
        SchemaError(format!("the schema cannot be linked: {}", what.strip_prefix(&format!("{OWN}:")).unwrap_or(&what).trim()))
    })?;
    Ok(pool)
}
