//! Requests per minute.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use crate::error::ApiError;
use crate::worker::lock;

/// Clients that are remembered before the ones with nothing to remember are dropped.
const MANY: usize = 4096;

/// What a client may still send: full at first, refilled over a minute.
#[derive(Debug)]
struct Bucket {
    per_minute: f64,
    left: f64,
    then: Instant,
}

impl Bucket {
    fn filled(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.then).as_secs_f64();
        (self.left + since * self.per_minute / 60.0).min(self.per_minute)
    }
}

/// A bucket for every client.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<HashMap<String, Bucket>>);

impl RateLimit {
    /// Takes one request of a client that may send so many per minute.
    ///
    /// # Errors
    /// 429 with the seconds until the next one.
    pub fn take(&self, client: &str, per_minute: u32, now: Instant) -> Result<(), ApiError> {
        let per_minute = f64::from(per_minute);
        let mut buckets = lock(&self.0);
        if buckets.len() >= MANY {
            buckets.retain(|_, bucket| bucket.filled(now) < bucket.per_minute);
        }
        let full = Bucket { per_minute, left: per_minute, then: now };
        let bucket = buckets.entry(client.to_owned()).or_insert(full);
        let left = bucket.filled(now);
        if left < 1.0 {
            return Err(ApiError::rate_limited(((1.0 - left) * 60.0 / per_minute).ceil() as u64));
        }
        (bucket.left, bucket.then) = (left - 1.0, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_minute_has_so_many_requests_for_every_client() {
        let limit = RateLimit::default();
        let start = Instant::now();
        assert!(limit.take("a", 2, start).is_ok() && limit.take("a", 2, start).is_ok());
        assert_eq!(limit.take("a", 2, start).unwrap_err().retry_after, Some(30));
        assert!(limit.take("b", 2, start).is_ok());
        assert!(limit.take("a", 2, start + Duration::from_secs(29)).is_err());
        assert!(limit.take("a", 2, start + Duration::from_secs(31)).is_ok());
    }
}
