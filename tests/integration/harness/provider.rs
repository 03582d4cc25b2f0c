//! A token endpoint for a single test. It supports the client credentials grant of OAuth 2.0 and issues JSON Web Tokens that the secure
//! broker accepts.

use super::unique;
use data_encoding::{BASE64, BASE64URL_NOPAD};
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::sign::Signer;
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The only scope for which the endpoint issues tokens.
pub const SCOPE: &str = "kafka.dedup";

/// The `sub` claim of all tokens, which the broker uses as the user name.
pub const SUBJECT: &str = "unseen";

/// A token endpoint. It runs until this process ends.
pub struct TokenProvider {
    url: String,
    secret: String,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    key: PKey<Private>,
    credentials: String,
    lifetime: Duration,
    audience: String,
    is_down: bool,
    tokens: Vec<String>,
}

impl TokenProvider {
    /// Starts an endpoint that signs its tokens with the private key `key`, in PEM format. A token that a client requests expires after
    /// `lifetime`.
    pub fn start(key: &str, lifetime: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let secret = unique("client-secret");
        let shared = Shared {
            key: PKey::private_key_from_pem(key.as_bytes()).expect("a private key"),
            credentials: format!("Basic {}", BASE64.encode(format!("{SUBJECT}:{secret}").as_bytes())),
            lifetime,
            audience: "kafka".to_owned(),
            is_down: false,
            tokens: Vec::new(),
        };
        let url = format!("http://{}/token", listener.local_addr().expect("an address"));
        let shared = Arc::new(Mutex::new(shared));
        let answering = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let _ = answer(stream, &answering);
            }
        });
        Self { url, secret, shared }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn secret(&self) -> &str {
        &self.secret
    }

    pub fn set_audience(&self, audience: &str) {
        audience.clone_into(&mut self.lock().audience);
    }

    pub fn set_down(&self, is_down: bool) {
        self.lock().is_down = is_down;
    }

    pub fn tokens(&self) -> Vec<String> {
        self.lock().tokens.clone()
    }

    /// Issues a token without a request from a client.
    pub fn issue(&self, lifetime: Duration) -> String {
        self.lock().issue(lifetime)
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn issue(&mut self, lifetime: Duration) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let header = json!({ "alg": "RS256", "kid": "unseen", "typ": "JWT" });
        let claims = json!({
            "iss": "https://idp.example", "sub": SUBJECT, "aud": self.audience, "scope": SCOPE,
            "iat": now, "exp": now + lifetime.as_secs(), "jti": unique("token"),
        });
        let content = [header, claims].map(|part| BASE64URL_NOPAD.encode(part.to_string().as_bytes())).join(".");
        let mut signer = Signer::new(MessageDigest::sha256(), &self.key).expect("a key that signs");
        let signature = signer.sign_oneshot_to_vec(content.as_bytes()).expect("a signature");
        let token = format!("{content}.{}", BASE64URL_NOPAD.encode(&signature));
        self.tokens.push(token.clone());
        token
    }

    fn respond(&mut self, authorization: &str, form: &str) -> (u16, serde_json::Value) {
        let has = |name: &str, value: &str| form.split('&').any(|pair| pair == format!("{name}={value}"));
        let error = |error: &str| json!({ "error": error, "error_description": "as the test wants it" });
        if authorization != self.credentials {
            (401, error("invalid_client"))
        } else if !has("grant_type", "client_credentials") {
            (400, error("unsupported_grant_type"))
        } else if !has("scope", SCOPE) {
            (400, error("invalid_scope"))
        } else {
            let token = self.issue(self.lifetime);
            (200, json!({ "access_token": token, "token_type": "Bearer", "expires_in": self.lifetime.as_secs() }))
        }
    }
}

fn answer(mut stream: TcpStream, shared: &Mutex<Shared>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut length, mut authorization) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            if line.trim_end().is_empty() {
                break;
            }
            continue;
        };
        match &*name.to_ascii_lowercase() {
            "content-length" => length = value.parse().expect("a length"),
            "authorization" => value.clone_into(&mut authorization),
            _ => {}
        }
    }
    let mut form = vec![0; length];
    reader.read_exact(&mut form)?;
    let mut shared = lock(shared);
    if shared.is_down {
        return Ok(());
    }
    let (status, body) = shared.respond(&authorization, &String::from_utf8_lossy(&form));
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
