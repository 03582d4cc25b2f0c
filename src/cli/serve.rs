//! `unseen serve`: follows the changelogs, and answers which keys were seen.

use super::interrupt::EXIT_INTERRUPTED;
use super::{ConfigArgs, service};
use crate::config::Config;
use crate::follower::Follower;
use crate::http::Events;
use crate::serve::Server;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    service::run(&args.config, Events::default(), serve)
}

async fn serve(config: Arc<Config>) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
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
    // Dropping the follower would wait for its threads, and those may wait for a broker that does not answer.
    std::mem::forget(Arc::clone(&server));
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let signals = async {
        let mut stop = Some(stop);
        loop {
            tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
            let Some(stop) = stop.take() else { std::process::exit(EXIT_INTERRUPTED) };
            tracing::info!("told to stop; finishing what clients have asked for");
            let _ = stop.send(());
        }
    };
    tokio::select! {
        never = signals => never,
        Ok(error) = failure => Err(error.into()),
        () = server.serve(listening, config.serve.threads, async { drop(stopped.await) }) => Ok(()),
    }
}
