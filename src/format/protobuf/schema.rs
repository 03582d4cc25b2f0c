//! From a schema as it is kept to the descriptors of its messages.
//!
//! Owns what the forms of a schema are, and which message is meant. Must never open a file: what a schema imports is among
//! its references, or well known.
//!
//! A file is reduced to its messages and enums before it is linked. Options, services and extensions say nothing about
//! where a field is; and what is not linked need not be right.

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

/// Most files that a schema may need.
const FILES_MAX: usize = 1_000;
/// The schema's own file. No file is imported under this name.
const OWN: &str = ".";
/// Names that an error lists.
const NAMES_MAX: usize = 8;

/// Files by the names under which they are imported.
type Files = BTreeMap<String, FileDescriptorProto>;

/// What is linked of a schema, once: equal schemas have equal ones.
#[derive(Clone, Debug, Default)]
pub(in crate::format) struct Once(OnceLock<Result<FileDescriptor, SchemaError>>);

impl PartialEq for Once {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Once {}

/// The descriptor of the message that records are.
pub(super) fn message(schema: &Schema, message: Message<'_>) -> Result<MessageDescriptor, SchemaError> {
    let own = schema.linked.0.get_or_init(|| linked(schema)).as_ref().map_err(SchemaError::clone)?;
    match message {
        Message::Named(name) => {
            let found = own.parent_pool().get_message_by_name(name.strip_prefix('.').unwrap_or(name));
            found.ok_or_else(|| SchemaError(format!("there is no message `{name}`: its file has {}", names(own))))
        }
        Message::Indexes([]) => first(own),
        Message::Indexes(indexes) => by_indexes(own, indexes),
        Message::First if matches!(schema.body, Body::Descriptors(_)) && own.messages().len() > 1 => {
            Err(SchemaError(format!("the last file of the descriptor set has {}: name the one that records are", names(own))))
        }
        Message::First => first(own),
    }
}

/// The schema's own file, with all that it needs.
fn linked(schema: &Schema) -> Result<FileDescriptor, SchemaError> {
    let mut files = Files::new();
    read(&schema.body, OWN, &mut files)?;
    for reference in &schema.references {
        let named = |SchemaError(error)| SchemaError(format!("of its reference `{}`, {error}", reference.name));
        if reference.name == OWN {
            return Err(named(SchemaError("the name is no name of a file".to_owned())));
        }
        read(&reference.body, &reference.name, &mut files).map_err(named)?;
    }
    link(needed(files)?)?.get_file_by_name(OWN).ok_or_else(|| SchemaError("the file is gone".to_owned()))
}

fn first(own: &FileDescriptor) -> Result<MessageDescriptor, SchemaError> {
    own.messages().next().ok_or_else(|| SchemaError("it has no message".to_owned()))
}

/// The messages of a file, in words.
fn names(own: &FileDescriptor) -> String {
    let all = own.messages().len();
    let mut names: Vec<_> = own.messages().take(NAMES_MAX).map(|message| format!("`{}`", message.full_name())).collect();
    match all.checked_sub(names.len()) {
        None | Some(0) => {}
        Some(more) => names.push(format!("{more} more")),
    }
    if names.is_empty() { "no message".to_owned() } else { names.join(", ") }
}

/// The message that a record's own indexes mean.
///
/// Some clients count the messages that a file declares. Others also count those that stand for its maps and groups. Where
/// both would be right, and mean two messages, nobody can tell.
fn by_indexes(own: &FileDescriptor, indexes: &[usize]) -> Result<MessageDescriptor, SchemaError> {
    let wrong = || SchemaError(format!("there is no message at the indexes {indexes:?}: its file has {}", names(own)));
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
                let ambiguous = "by its indexes, and clients differ on which: name the one that records are";
                return Err(SchemaError(format!("a record is a `{one}` or a `{other}` {ambiguous}")));
            }
            (one, other) => one.or(other).ok_or_else(wrong)?,
        };
    }
    Ok(message)
}

/// Adds a schema to the files: its own file by that name, and those that come with it by theirs.
fn read(body: &Body, name: &str, files: &mut Files) -> Result<(), SchemaError> {
    let own = match body {
        Body::Text(text) if is_base64(text) => {
            let packed: String = text.split_ascii_whitespace().collect();
            let decoded = BASE64.decode(packed.as_bytes()).ok().and_then(|bytes| FileDescriptorProto::decode(bytes.as_slice()).ok());
            decoded.ok_or_else(|| SchemaError("it is neither a .proto file nor a FileDescriptorProto in base64".to_owned()))?
        }
        Body::Text(text) => parse(name, text)?,
        Body::Descriptors(bytes) => {
            let set = FileDescriptorSet::decode(bytes.as_slice());
            let mut set = set.map_err(|error| SchemaError(format!("it is no FileDescriptorSet: {error}")))?;
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

/// Whether a text cannot be a .proto file: one without a blank or a brace has nothing in it.
fn is_base64(text: &str) -> bool {
    let is_of_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte) || byte.is_ascii_whitespace();
    !text.trim().is_empty() && text.bytes().all(is_of_base64)
}

fn parse(name: &str, text: &str) -> Result<FileDescriptorProto, SchemaError> {
    let parsed = File::from_source(name, text).map(FileDescriptorProto::from);
    parsed.map_err(|error| {
        let is_edition = text.lines().any(|line| line.trim_start().starts_with("edition"));
        // Its `Debug` says where, and its `Display` does not.
        let what = format!("{error:?}");
        let what = what.strip_prefix(&format!("{name}:")).unwrap_or(&what).trim();
        SchemaError(if is_edition { editions() } else { format!("it is no .proto file: {what}") })
    })
}

fn editions() -> String {
    "it is of an edition, which cannot be read yet: only proto2 and proto3 can".to_owned()
}

/// The schema's own file and all that it imports, reduced.
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
            SchemaError(format!("`{name}` is imported{by}, and is not among its references"))
        })?;
        if needed.len() == FILES_MAX {
            return Err(SchemaError(format!("it needs more than {FILES_MAX} files")));
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

/// Leaves of a file what says where fields are.
fn reduce(file: &mut FileDescriptorProto, name: &str) -> Result<(), SchemaError> {
    fn reduce_enum(symbols: &mut EnumDescriptorProto) {
        // Whoever made the schema has allowed the aliases that are there.
        symbols.options = Some(EnumOptions { allow_alias: Some(true), ..EnumOptions::default() });
        symbols.value.iter_mut().for_each(|value| value.options = None);
    }
    // As deep as the parser and the decoder allow: 31 and 100.
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
        other => return Err(SchemaError(format!("`{other}` is a syntax that cannot be read: only proto2 and proto3 can"))),
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

/// Resolves the names of types.
fn link(mut files: Files) -> Result<DescriptorPool, SchemaError> {
    // Behind what they import, and with what that imports publicly among their own imports: the linker follows neither a
    // circle nor public imports to their end.
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
        SchemaError(format!("it cannot be linked: {}", what.strip_prefix(&format!("{OWN}:")).unwrap_or(&what).trim()))
    })?;
    Ok(pool)
}
