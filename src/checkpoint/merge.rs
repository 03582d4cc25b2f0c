//! Several state directories joined into one: each partition has then seen what it had in any of them.
//!
//! Must never write to a directory that it reads, nor join memories of different configurations.

use super::decode::outline_rules;
use super::store::{Loaded, Store};
use super::{Error, Head, PartitionId, StoredFingerprints};
use crate::dedup::Dedup;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Fingerprints that are taken over between two writes.
const FINGERPRINTS_MAX: u64 = 1 << 20;

/// Joins the state of `sources` in a new directory. Returns the number of partitions.
///
/// Of each input topic the later offset counts: both memories are of one log, and the join holds the
/// effect of all records below it that either has.
///
/// # Errors
/// When a directory cannot be read or written, `target` has state already, or two memories do not fit.
pub fn merge(sources: &[PathBuf], target: &Path) -> Result<usize, Error> {
    let opened = sources.iter().map(|dir| Ok((dir, Store::open_to_read(dir)?, Store::open_to_read(dir)?.heads()?)));
    let sources: Vec<Source<'_>> = opened.collect::<Result<_, Error>>()?;
    let new = Arc::new(Store::open(target)?);
    if !new.heads()?.is_empty() {
        return Err(Error::Merge(format!("{}: there is state in it already; name a new directory", target.display())));
    }
    let ids: BTreeSet<_> = sources.iter().flat_map(|(_, _, heads)| heads.iter().map(|(id, _)| id)).collect();
    for &id in &ids {
        join(&sources, id, &new)?;
    }
    Ok(ids.len())
}

/// A directory, its store, and what that holds.
type Source<'a> = (&'a PathBuf, Store, Vec<(PartitionId, Head)>);

/// Joins one partition, from all directories that have it.
fn join(sources: &[Source<'_>], id: &PartitionId, new: &Arc<Store>) -> Result<(), Error> {
    let mut joined: Option<(Head, Dedup)> = None;
    let mut parts = Vec::new();
    for (dir, store, heads) in sources {
        let Some((_, head)) = heads.iter().find(|(other, _)| other == id) else { continue };
        let Loaded::Usable { memory, .. } = store.load(id, &head.settings, outline_rules(head))? else { continue };
        parts.push((store, head));
        let (whole, own) = joined.get_or_insert_with(|| (head.clone(), Dedup::new(outline_rules(head))));
        let misfit = |what: String| Error::Merge(format!("{id} of {}: {what}", dir.display()));
        if whole.settings != head.settings {
            return Err(misfit(whole.settings.difference(&head.settings)));
        }
        own.union(&memory).map_err(|error| misfit(error.to_string()))?;
        for (topic, &offset) in &head.offsets {
            let known = whole.offsets.entry(topic.clone()).or_insert(offset);
            *known = offset.max(*known);
        }
    }
    let Some((mut head, mut memory)) = joined else { return Ok(()) };
    head.memory = memory.snapshot();
    let (mut saved, _) = new.save(id, &head, &mut memory, None)?;
    memory.attach(Box::new(StoredFingerprints::new(Arc::clone(new), id.clone(), saved)));
    for (store, theirs) in parts {
        for (generation, slice) in theirs.memory.generations() {
            store.each_fingerprint(id, generation, &mut |fingerprint| {
                let Some(exact) = memory.exact_mut() else { return Ok(()) };
                exact.put(slice, fingerprint);
                if exact.unsaved() >= FINGERPRINTS_MAX {
                    (saved, _) = new.save(id, &head, &mut memory, Some(saved))?;
                }
                Ok(())
            })?;
        }
    }
    new.save(id, &head, &mut memory, Some(saved)).map(drop)
}
