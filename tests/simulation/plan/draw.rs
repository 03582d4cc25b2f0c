//! Draws plans and their faults from seeds.

use super::{FAILING, Fault, MEMBERS, Plan, Step};
use crate::harness::{SplitMix, pick};
use crate::options::{Change, EVENT_TIMES, Memory, ON_CHANGE, Options, RULES, WHEN};
use crate::table;
use crate::truth::ServerFilter;

/// The numbers of the faults that a plan draws most often. A defect that needs a few kinds of faults in the right order is rarely found if
/// a plan draws all kinds equally often. Half of the plans have no favorites.
struct Favorites(Vec<usize>);

impl Favorites {
    /// The number of values that `Fault::draw` maps to faults. A fault with more values is drawn more often.
    const NUMBERS: usize = 62;
    /// The numbers of `Kill`, `Join`, and `Leave`, which move partitions between processes.
    const MOVES: [usize; 3] = [0, 20, 22];

    fn draw(random: &mut SplitMix) -> Self {
        let count = pick(random, &[0, 0, 1, 3]);
        let drawn: Vec<_> = (0..count).map(|_| random.below(Self::NUMBERS)).collect();
        Self(if drawn.is_empty() { drawn } else { drawn.into_iter().chain(Self::MOVES).collect() })
    }

    fn pick(&self, random: &mut SplitMix) -> usize {
        if self.0.is_empty() || random.below(4) == 0 { random.below(Self::NUMBERS) } else { pick(random, &self.0) }
    }
}

impl Plan {
    pub fn draw(seed: u64, faults: usize) -> Self {
        let mut random = SplitMix(seed ^ 0x5eed);
        let options = Options::of_seed(seed);
        let mut plan = Self {
            seed,
            records: 300,
            capacity: pick(&mut random, &[40, 400, 4_000]),
            commit_ms: pick(&mut random, &[20, 50, 200]),
            checkpoint_ms: pick(&mut random, &[100, 300, 1_000]),
            session_ms: pick(&mut random, &[2_000, 6_000]),
            transaction_ms: pick(&mut random, &[1_000, 2_000]),
            transaction_records: pick(&mut random, &[3, 30, 1_000_000, 1_000_000]),
            begin_kills: None,
            aborted_seed: false,
            server: None,
            network: random.below(2) == 0,
            record_ms: 0,
            partitions: Self::few(),
            // The interval must be longer than the five seconds that a worker waits before it accepts that a log was truncated.
            max_poll_ms: (random.below(4) == 0).then_some(8_000),
            append_time: false,
            clocks_ms: [0; MEMBERS],
            pattern: false,
            options,
            steps: Vec::new(),
        };
        let mut members = 1;
        let part = plan.records / (faults + 1);
        // Uses a separate generator so that existing seeds keep their plans.
        let favorites = Favorites::draw(&mut SplitMix(seed ^ 0xfa70));
        let step = |number: usize| {
            let fault = Fault::draw(&plan, members, &favorites, &mut random);
            match fault {
                Fault::Join => members += 1,
                Fault::Leave { .. } => members -= 1,
                _ => {}
            }
            let delay_ms = pick(&mut random, &[0, 5, 50, 400]);
            Step { at: part * number + random.below(part), delay_ms, who: random.below(MEMBERS), fault }
        };
        let steps = (0..faults).map(step).collect();
        plan.steps = steps;
        if plan.has(&Fault::AddPartitions) {
            // A recreated repartition topic would have more partitions than before, so keys would move away from their state.
            plan.steps.retain(|step| step.fault != Fault::DeleteRepartitionTopic);
        }
        if plan.steps.iter().any(|step| step.fault.changes_conditions()) && !table::promise(plan.rows()).exact {
            // If the plan does not promise exact output, the worker may read records again and judge them by the new condition. In that
            // case, the test does not know the expected verdicts.
            plan.steps.retain(|step| !step.fault.changes_conditions());
        }
        if plan.steps.iter().any(|step| matches!(step.fault, Fault::LoseOffsets | Fault::ResetOffset { .. })) {
            // Drops changes that need the metadata of the group's offsets. The metadata shows which entries have read the records and, with
            // `start = "latest"`, where the group began.
            let (is_latest, has_entries) = (plan.options.has("start = \"latest\""), plan.options.has(RULES));
            let needs_it = |change: Change| match change {
                Change::Rules => true,
                Change::When => has_entries,
                Change::Emit => is_latest,
                _ => false,
            };
            plan.steps.retain(|step| !matches!(step.fault, Fault::Change(change) if needs_it(change)));
        }
        if plan.has(&Fault::Change(Change::When)) || plan.has(&Fault::Change(Change::Rules)) {
            // After a change of `emit`, the worker evaluates all records again and applies the current entries and their `when` to all of
            // them. The model applies those of the time when the worker first read the record, so a plan must not change both.
            plan.steps.retain(|step| step.fault != Fault::Change(Change::Emit));
        }
        plan.begin_kills = (plan.options.has("state.changelog = true") && random.below(3) == 0)
            .then(|| [1 + random.next() % 300, 1 + random.next() % 300]);
        let server = pick(&mut random, &[None, None, Some(ServerFilter::Worker), Some(ServerFilter::Aging), Some(ServerFilter::Cuckoo)]);
        plan.aborted_seed = plan.options.has("state.changelog = true") && random.below(4) == 0;
        if random.below(4) == 0 {
            plan.clocks_ms = std::array::from_fn(|_| pick(&mut random, &[0, -10_000_000, -60_000, 500, 60_000, 10_000_000]));
        }
        // `record_ms` slows down only transactions, so it has no effect without `exactly_once`. It also requires a changelog: without a
        // changelog, the worker must write some decided records in a single transaction, which slow brokers may not complete in time.
        let is_atomic = plan.options.has("delivery = \"exactly_once\"") && plan.options.has("state.changelog = true");
        if is_atomic && plan.transaction_records > 300 && random.below(8) == 0 {
            // Brokers must be faster if they have more records to write. Each entry of an input writes its own first changelog records, and
            // each rejected record restarts the transaction. Plans with favorites can have many kills, and brokers still write the records
            // that killed processes have sent.
            let writes_more = plan.options.has(RULES) && plan.options.has("records that the output refuses") || !favorites.0.is_empty();
            plan.record_ms = pick(&mut random, &[20, 50]).min(if writes_more { 20 } else { 50 });
            // Several workers write their first changelog records at the same time. If brokers need longer than the transaction timeout for
            // these records, no transaction can be committed.
            plan.transaction_ms = 2_000;
        }
        if random.below(20) == 0 {
            plan.partitions = pick(&mut random, &[50, 100]);
            // A transaction over all partitions takes up to a few seconds. Restoring all partitions takes even longer. The worker polls
            // during neither, so it needs the default `max.poll.interval.ms`.
            (plan.transaction_ms, plan.max_poll_ms) = (10_000, None);
        }
        // Plans with many partitions have no server, because its queries would take most of the time. Plans that delete the changelog have
        // no server either, because the server cannot notice that its own state lacks keys.
        let may_serve = plan.options.has("state.changelog = true") && plan.partitions == Self::few() && !plan.has(&Fault::DeleteChangelog);
        plan.server = server.filter(|_| may_serve && !plan.options.has(ON_CHANGE));
        // With `append_time`, a process whose clock is behind would consider the brokers' timestamps to be in the future.
        let has_brokers_clock =
            plan.clocks_ms == [0; MEMBERS] && !plan.steps.iter().any(|step| matches!(step.fault, Fault::StepClock { .. }));
        // The brokers' timestamps are far from the event times, so keys would expire when `time` changes.
        let keeps_time = !plan.has(&Fault::Change(Change::Time));
        plan.append_time = has_brokers_clock && random.below(6) == 0 && keeps_time;
        // Uses a separate generator so that existing seeds keep their plans.
        let mut random = SplitMix(seed ^ 0x7a77);
        if plan.may_have_pattern() && random.below(8) == 0 { plan.with_pattern(&mut random) } else { plan }
    }

    fn may_have_pattern(&self) -> bool {
        ["start = \"latest\"", "instance_id", "a space that topics share"].iter().all(|option| !self.options.has(option))
    }

    /// Adds a pattern to the plan, and steps that create topics.
    fn with_pattern(mut self, random: &mut SplitMix) -> Self {
        self.pattern = true;
        if self.partitions > Self::few() {
            // A new owner logs the first changelog records of all topics in one transaction. Slow brokers could not accept that many before
            // the transaction times out.
            self.record_ms = 0;
        }
        // A filter that is configured for the server belongs to one space. Each new topic has its own space, so the server must use the
        // worker's filter for that space.
        self.server = self.server.filter(|_| self.servers_can_have_the_workers_filter() && !self.options.has(RULES));
        let step = |_| {
            let delay_ms = pick(random, &[0, 5, 50, 400]);
            Step { at: random.below(self.records), delay_ms, who: random.below(MEMBERS), fault: Fault::NewTopic }
        };
        self.steps.extend((0..3).map(step));
        self.steps.sort_by_key(|step| step.at);
        self
    }

    /// True if a server can use the workers' filter, before and after each change of the configuration.
    fn servers_can_have_the_workers_filter(&self) -> bool {
        let mut memory = self.options.memory(self.capacity);
        let can_have = |memory: &Memory| memory.rate_of_follower(self.options.has("retract")).is_some();
        let mut changes = self.steps.iter().filter_map(|step| if let Fault::Change(change) = step.fault { Some(change) } else { None });
        can_have(&memory)
            && changes.all(|change| {
                memory.change(change, &self.options);
                can_have(&memory)
            })
    }

    pub fn with_kills(mut self, kills: usize) -> Self {
        // Brokers must not be slow, because they would continue to write the records of all killed processes.
        self.record_ms = if kills > 0 { 0 } else { self.record_ms };
        let mut random = SplitMix(self.seed ^ 0xdead);
        let kill = |_| {
            let fault = if random.below(4) == 0 { Fault::Kill } else { Fault::KillAfter(1 + random.next() % 400) };
            Step { at: random.below(self.records), delay_ms: pick(&mut random, &[0, 5, 50, 400]), who: random.below(MEMBERS), fault }
        };
        self.steps.extend((0..kills).map(kill));
        self.steps.sort_by_key(|step| step.at);
        self
    }
}

impl Fault {
    fn draw(plan: &Plan, members: usize, favorites: &Favorites, random: &mut SplitMix) -> Self {
        let killed = random.below(2) == 0;
        let has = |choice| plan.options.has(choice);
        let has_changelog = has("state.changelog = true");
        let by_keys = plan.options.is_judged_by_keys();
        let is_spared = has_changelog || by_keys && !has("cold_start = \"fail\"");
        let may_change = |change| match change {
            Change::Size => plan.options.filter().keeps_window(),
            // Only one kind of filter supports `emit = "on_change"`.
            Change::Kind => has_changelog && has("refresh = false") && plan.options.filter().keeps_window() && !has(ON_CHANGE),
            Change::Stable => has_changelog && by_keys,
            Change::Slices | Change::Window | Change::Time => has_changelog && !plan.options.rotates(),
            // The verdict on a record depends on the entries and their `when` at the time when the worker first reads the record. So the
            // test must know which records the worker read before the change.
            Change::When | Change::Rules => has_changelog && plan.options.is_ordered(),
            // The worker evaluates all records that it has read again, with the new `emit`. So it must be allowed to rebuild its state, and
            // no key may have expired.
            Change::Emit => has_changelog && has(ON_CHANGE) && has("cold_start = \"rebuild\"") && !plan.options.rotates(),
        };
        loop {
            let change = pick(random, &[Change::Kind, Change::Kind, Change::Stable, Change::Size, Change::Slices, Change::Window]);
            let change = match change {
                Change::Kind if has(ON_CHANGE) => Change::Emit,
                Change::Slices if killed && has(EVENT_TIMES) => Change::Time,
                Change::Slices | Change::Size if !killed && has(WHEN) => Change::When,
                Change::Kind | Change::Window if killed && has(RULES) => Change::Rules,
                change => change,
            };
            let longest = plan.max_poll_ms.unwrap_or(plan.session_ms);
            let ms = pick(random, &[300, plan.transaction_ms + 1_500, plan.session_ms + 1_500, longest + 1_500]);
            return match favorites.pick(random) {
                0..=4 => Self::Kill,
                5..=8 => Self::KillAfter(1 + random.next() % 400),
                9..=13 => {
                    let point = pick(random, unseen::fault::POINTS);
                    Self::KillAt(point.to_owned(), 1 + u32::try_from(random.below(4)).unwrap_or(0))
                }
                14..=15 => Self::FailAt(pick(random, &FAILING).to_owned(), 1 + u32::try_from(random.below(4)).unwrap_or(0)),
                16..=18 => Self::Stop { ms },
                19 => Self::Terminate,
                20..=21 if members < MEMBERS => Self::Join,
                22 if members > 1 => Self::Leave { killed },
                23 => Self::Roll,
                24 => Self::Twin { killed },
                25 if is_spared => Self::LoseDisk { killed },
                26 if is_spared => Self::DamageDisk { entry: random.below(64), killed },
                27 if is_spared => Self::OldDisk,
                28 => Self::FullDisk { ms },
                29 if is_spared => Self::DeleteDisk,
                30..=31 if may_change(change) => Self::Change(change),
                32 if by_keys => Self::AddPartitions,
                33 if is_spared => Self::LoseOffsets,
                34 => Self::Outage { ms },
                35 => Self::Elect { partition: pick(random, &[0, 1, 2, 3]), lag: pick(random, &[0, 1, 5]) },
                36 if has_changelog && by_keys && killed => Self::RecreateInput,
                36 if has_changelog && by_keys => Self::RecreateInputAndDisks,
                37 if has_changelog => Self::Server { killed, ms },
                40 if has("on_truncation = \"continue\"") => Self::ShortLog { partition: pick(random, &[0, 1, 2, 3]) },
                // The worker cannot know whether records are missing between its checkpoint and the remaining records, so it follows
                // `cold_start`.
                41 if has_changelog && by_keys && has("cold_start = \"rebuild\"") => Self::ExpireInput,
                42 => Self::FormerLeader,
                43 if has_changelog && by_keys && has("start = \"earliest\"") && !has("cold_start = \"fail\"") => Self::DeleteChangelog,
                44 if has("repartition = true") => Self::DeleteRepartitionTopic,
                45 if is_spared
                    && by_keys
                    && has("repartition = false")
                    && has("a space of one topic")
                    // With `cold_start = "fail"`, the worker would stop after the reset, because it would have to rebuild missing state.
                    && !has("cold_start = \"fail\"") =>
                {
                    Self::ResetOffset { partition: pick(random, &[0, 1, 2, 3]), back: pick(random, &[1, 5, 1000]) }
                }
                48 => Self::LateEnd { ms: pick(random, &[20, 100, 400]) },
                46..=47 => Self::ElectAfterRestore { lag: pick(random, &[1, 5, 20]) },
                49..=51 => {
                    let point = pick(random, unseen::fault::POINTS);
                    Self::StopAt { point: point.to_owned(), count: 1 + u32::try_from(random.below(4)).unwrap_or(0), ms }
                }
                52 if has_changelog && by_keys && has("cold_start = \"rebuild\"") => Self::ExpireUnderWay,
                38 => Self::StepClock { ms: pick(random, &[-3_600_000, -60_000, 60_000, 3_600_000]) },
                53..=54 => Self::MixedTransaction { partition: pick(random, &[0, 1, 2, 3]), ms, committed: killed },
                55..=57 => {
                    // Chooses any set of brokers except the empty set.
                    let bits = 1 + random.below(7);
                    Self::CutOff { brokers: (0..3).filter(|broker| bits >> broker & 1 == 1).collect(), ms }
                }
                58..=59 => {
                    let point = pick(random, unseen::fault::POINTS);
                    Self::StallAt { point: point.to_owned(), count: 1 + u32::try_from(random.below(4)).unwrap_or(0), ms }
                }
                60 => Self::ExpireTransactionalIds,
                61 => Self::MoveAll { lag: pick(random, &[0, 1, 5]) },
                39 => Self::OpenTransaction { partition: pick(random, &[0, 1, 2, 3]), ms },
                _ => continue,
            };
        }
    }
}
