//! The calls of a plan, drawn from a seed.

use crate::harness::{SplitMix, pick};

/// The current or the fenced producer of a transactional id.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    pub id: usize,
    pub is_fenced: bool,
}

/// A partition: the index of its topic in [`Names::TOPICS`], and its number.
#[derive(Clone, Copy, Debug)]
pub struct To(pub usize, pub i32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    NoKey,
    /// Larger than the strict topic accepts.
    Large,
    /// Older than the strict topic accepts.
    Old,
    /// Further in the future than any topic accepts.
    Future,
    Timeless,
}

#[derive(Clone, Debug)]
pub enum Op {
    Begin(Who),
    Send(Who, To, Vec<Kind>),
    /// Writes a copy of a record, with changed headers.
    Copy(Who, To, To),
    /// Adds an offset of the plain topic to the transaction `count` times, with `metadata` bytes of metadata. With `is_stale`, the producer
    /// sends the offset in the name of a former group member.
    SendOffset {
        who: Who,
        partition: i32,
        offset: i64,
        metadata: usize,
        count: usize,
        is_stale: bool,
    },
    Commit(Who),
    Abort(Who),
    /// A new producer initializes the transactional id, which fences the current producer.
    Fence(usize),
    /// Writes without a transaction.
    Write(To, Vec<Kind>),
    /// Commits an offset without a transaction.
    CommitOffset {
        partition: i32,
        offset: i64,
        metadata: usize,
    },
    /// Reads from an offset, as a member of the group.
    Read(To, i64),
    /// Reads from an offset, as a reader of a changelog.
    Tail(To, i64),
    /// Looks up the ends of a log, and the offset of the first record with at least a certain timestamp.
    Look(To, i64),
    Committed,
    Trim(To, i64),
    /// The member leaves, and another member joins.
    Rejoin,
    Recreate(usize),
    AddPartition,
}

pub fn draw(seed: u64) -> Vec<Op> {
    let random = &mut SplitMix(seed);
    // Each of these calls takes a second on a real broker, so a plan has each of them only once.
    let mut heavy = vec![Op::Rejoin, Op::Recreate(random.below(3)), Op::AddPartition];
    let mut plan: Vec<_> = (0..70).map(|_| light(random)).collect();
    while let Some(op) = heavy.pop() {
        plan.insert(10 + random.below(plan.len() - 10), op);
    }
    plan
}

fn light(random: &mut SplitMix) -> Op {
    let who = Who { id: random.below(2), is_fenced: random.below(8) == 0 };
    let to = pick(random, &[To(0, 0), To(0, 0), To(0, 1), To(1, 0), To(2, 0)]);
    let offset = i64::try_from(random.below(30)).unwrap_or(0);
    let partition = pick(random, &[0, 1]);
    let metadata = pick(random, &[0, 40, 4096, 4097]);
    match random.below(32) {
        0..=3 => Op::Begin(who),
        4..=8 => Op::Send(who, to, kinds(random)),
        9 => Op::Copy(who, To(0, 0), to),
        10..=11 => Op::SendOffset { who, partition, offset, metadata, count: pick(random, &[1, 1, 300]), is_stale: random.below(4) == 0 },
        12..=14 => Op::Commit(who),
        15 => Op::Abort(who),
        16..=17 => Op::Fence(who.id),
        18..=20 => Op::Write(to, kinds(random)),
        21 => Op::CommitOffset { partition, offset, metadata },
        22..=24 => Op::Read(to, offset),
        25..=27 => Op::Tail(to, offset),
        28..=29 => Op::Look(to, offset),
        30 => Op::Committed,
        _ => Op::Trim(to, offset),
    }
}

/// Draws a batch with at most one record that may be rejected.
fn kinds(random: &mut SplitMix) -> Vec<Kind> {
    let mut kinds = vec![Kind::Plain; 1 + random.below(3)];
    let at = random.below(kinds.len());
    kinds[at] = pick(random, &[Kind::Plain, Kind::Plain, Kind::NoKey, Kind::Large, Kind::Old, Kind::Future, Kind::Timeless]);
    kinds
}
