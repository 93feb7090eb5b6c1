//! What gives way where a model does not fit the memory: the types of K and V, then the context. Nothing does unless the
//! options let it, and whatever does is said.

use basert_model::ModelSpec;

use crate::EngineError;
use crate::engine::Options;
use crate::kv::KvTypes;
use crate::plan::{MemoryPlan, available_memory};
use crate::sizing::{Sizing, TILE, WeightBytes, largest, wanted_context};

/// Options with nothing left open: a context, and K and V of types that fit the memory; and a line for everything that is
/// less than what was asked for, or than the model's own context.
///
/// # Errors
/// Options out of their bounds, and what does not fit although nothing more may give way.
pub(crate) fn settled(
    spec: &ModelSpec,
    options: &Options,
    weights: WeightBytes,
) -> Result<(Options, Vec<String>), EngineError> {
    let wanted = wanted_context(spec, options);
    let whole = Options { context: Some(wanted), ..options.clone() };
    let plan = Sizing::new(spec, &whole)?.plan(wanted, weights)?;
    let Some(budget) = options.fit.or_else(available_memory) else { return Ok((whole, Vec::new())) };
    let room = Room { spec, options, weights, budget };
    if options.fit.is_none() && options.context.is_none() {
        return room.usual(wanted);
    }
    let kv = room.widest(wanted, |plan| plan.total());
    let kv = match options.fit {
        Some(_) => kv,
        // Mapped weights are read again where there is no room for them.
        None => kv.or_else(|| room.widest(wanted, resident)),
    };
    match kv {
        Some(kv) => Ok(room.narrowed(kv, wanted, &plan)),
        None if options.fit.is_some() => room.shortened(wanted, &plan),
        None => Err(room.refusal(wanted, &plan)),
    }
}

/// Bytes that the system cannot take back.
fn resident(plan: &MemoryPlan) -> u64 {
    plan.total() - plan.weights_mapped
}

/// Options, and what they have to fit into.
struct Room<'a> {
    spec: &'a ModelSpec,
    options: &'a Options,
    weights: WeightBytes,
    budget: u64,
}

impl Room<'_> {
    fn options(&self, kv: KvTypes, context: usize) -> Options {
        Options { kv, context: Some(context), ..self.options.clone() }
    }

    fn plan(&self, kv: KvTypes, context: usize) -> Option<MemoryPlan> {
        Sizing::new(self.spec, &self.options(kv, context)).ok()?.plan(context, self.weights).ok()
    }

    /// The types that K and V may have, widest first.
    fn types(&self) -> Vec<KvTypes> {
        let narrower = KvTypes::NARROWER.into_iter().filter(|kv| self.options.narrow_kv && kv.fit(self.spec));
        [self.options.kv].into_iter().chain(narrower).collect()
    }

    /// The widest types with which what `bytes` counts fits.
    fn widest(&self, context: usize, bytes: fn(&MemoryPlan) -> u64) -> Option<KvTypes> {
        let fits = |kv: &KvTypes| self.plan(*kv, context).is_some_and(|plan| bytes(&plan) <= self.budget);
        self.types().into_iter().find(fits)
    }

    /// The narrowest types, and the largest context that fits with them.
    fn shortened(&self, wanted: usize, plan: &MemoryPlan) -> Result<(Options, Vec<String>), EngineError> {
        let kv = self.types().last().copied().unwrap_or(self.options.kv);
        let fits = |context| Ok(self.plan(kv, context).is_some_and(|plan| plan.total() <= self.budget));
        let Some(context) = largest(wanted, fits)? else { return Err(self.refusal(wanted, plan)) };
        let (options, mut said) = self.narrowed(kv, context, plan);
        said.push(format!(
            "the context is {context} tokens instead of {wanted}, to fit {} MiB",
            self.budget >> 20
        ));
        Ok((options, said))
    }

    /// These types, and what there is to say of them.
    fn narrowed(&self, kv: KvTypes, context: usize, plan: &MemoryPlan) -> (Options, Vec<String>) {
        let mut said = Vec::new();
        if kv != self.options.kv {
            said.push(format!(
                "the KV cache is {kv} instead of {}, with which everything takes {} MiB of {} MiB",
                self.options.kv,
                plan.total() >> 20,
                self.budget >> 20
            ));
        }
        (self.options(kv, context), said)
    }

    /// The model's own context, shortened until cache and workspace take half of the memory.
    fn usual(&self, wanted: usize) -> Result<(Options, Vec<String>), EngineError> {
        let mut context = wanted;
        let fits =
            |context| self.plan(self.options.kv, context).map_or(0, |p| resident(&p)) <= self.budget / 2;
        while context > TILE && !fits(context) {
            context /= 2;
        }
        let shortened =
            || format!("context shortened from {wanted} to {context} tokens to fit half the free memory");
        let said = (context < wanted).then(shortened).into_iter().collect();
        Ok((self.options(self.options.kv, context), said))
    }

    fn refusal(&self, context: usize, plan: &MemoryPlan) -> EngineError {
        let fits = |context| {
            let plan = self.plan(self.options.kv, context);
            Ok(plan.is_some_and(|plan| resident(&plan) <= self.budget))
        };
        let largest = match largest(context, fits) {
            Ok(Some(tokens)) => format!("; {tokens} tokens would fit"),
            _ => String::new(),
        };
        let KvTypes { k, v } = self.options.kv;
        let (needed, mapped) = (resident(plan) >> 20, plan.weights_mapped >> 20);
        let reason = format!(
            "{context} tokens with K {k} and V {v} need {needed} MiB beside {mapped} MiB of mapped weights, but {} MiB are \
             {}{largest}",
            self.budget >> 20,
            if self.options.fit.is_some() { "allowed" } else { "free" },
        );
        EngineError::Option { option: "context", reason }
    }
}
