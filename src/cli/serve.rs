//! `unseen serve`: follows the changelogs and answers lookups of seen keys.

use super::interrupt::EXIT_INTERRUPTED;
use super::{ConfigArgs, service};
use crate::broker::{self, topics};
use crate::config::Config;
use crate::follower::Follower;
use crate::http::Events;
use crate::kafka::KafkaBroker;
use crate::serve::Server;
use crate::stats::Stats;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

const EXAMPLES: &str = "\
Examples:
  unseen serve -c unseen.toml
  unseen serve -c unseen.toml --set serve.listen=127.0.0.1:6379";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    service::run(&args.config, Events::default(), serve)
}

/// Finds the topics that match the patterns of the configuration. If these topics change later, logs a warning, because this server keeps
/// following the topics that it started with.
fn expand(config: &Arc<Config>) -> Result<Arc<Config>, broker::Error> {
    let broker = KafkaBroker::new(Arc::new(Stats::new(config)));
    let found = Arc::new(topics::followed(&broker, config, &|| false)?);
    let (configured, known) = (Arc::clone(config), Arc::clone(&found));
    std::thread::spawn(move || {
        let inputs = |config: &Config| config.topics.iter().map(|topic| topic.input.clone()).collect::<BTreeSet<_>>();
        let mut known = inputs(&known);
        loop {
            std::thread::sleep(configured.topics_interval());
            let Ok(now) = topics::followed(&broker, &configured, &|| false).map(|now| inputs(&now)) else { continue };
            if now != known {
                tracing::warn!("the topics that match the patterns in `input` have changed; restart this server to follow them");
                known = now;
            }
        }
    });
    Ok(found)
}

async fn serve(config: Arc<Config>) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let config = if config.patterns.is_empty() {
        config
    } else {
        let expanding = tokio::task::spawn_blocking(move || expand(&config));
        // The lookup may block on a broker, so a signal ends the process without waiting for the lookup.
        tokio::select! {
            config = expanding => config??,
            _ = terminate.recv() => std::process::exit(0),
            _ = interrupt.recv() => std::process::exit(0),
        }
    };
    let follower = Follower::start(&config)?;
    let end = follower.end();
    let (failed, failure) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || failed.send(end.wait()));
    let server = Server::new(&config, follower).map_err(anyhow::Error::msg)?;
    if let Some(warning) = config.serve.open_writes() {
        tracing::warn!("{warning}");
    }
    let listening = server.listen().await.map_err(anyhow::Error::msg)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), spaces = config.spaces().len(), "started");
    // Dropping the follower would join its threads, which may block on an unresponsive broker.
    std::mem::forget(Arc::clone(&server));
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let signals = async {
        let mut stop = Some(stop);
        loop {
            tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
            let Some(stop) = stop.take() else { std::process::exit(EXIT_INTERRUPTED) };
            tracing::info!("shutting down; finishing pending requests");
            let _ = stop.send(());
        }
    };
    tokio::select! {
        never = signals => never,
        Ok(error) = failure => Err(error.into()),
        () = server.serve(listening, config.serve.threads, async { drop(stopped.await) }) => Ok(()),
    }
}
