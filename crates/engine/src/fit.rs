//! What gives way where a model does not fit the memory: the types of K and V, then the context. Nothing does unless the
//! options let it, and whatever does is said. Loading and planning both ask here, so that a plan names what is allocated.

use basert_model::ModelSpec;

use crate::EngineError;
use crate::kv::KvTypes;
use crate::options::Options;
use crate::plan::MemoryPlan;
use crate::sizing::{MAX_CONTEXT, Sizing, TILE, WeightBytes, wanted_context};

/// What [`Engine::load`](crate::Engine::load) makes of options: nothing is left open, neither the context nor the types of K
/// and V; and a line for everything that is less than what was asked for, or than the model's own context.
///
/// With [`Options::fit`], K and V are the widest with which the wanted context fits, weights included; where none does, they
/// are the narrowest, and the context is the largest that fits. Types only become others where [`Options::narrow_kv`] lets them.
///
/// # Errors
/// Options out of their bounds, and what does not fit although nothing more may give way.
pub fn settled(
    spec: &ModelSpec,
    options: &Options,
    weights: WeightBytes,
) -> Result<(Options, Vec<String>), EngineError> {
    let wanted = wanted_context(spec, options);
    let whole = Options { context: Some(wanted), ..options.clone() };
    let plan = Sizing::new(spec, &whole)?.plan(wanted, weights)?;
    let Some(budget) = options.fit.or_else(|| options.free_memory()) else { return Ok((whole, Vec::new())) };
    let room = Room { spec, options, weights, budget };
    match (options.fit, options.context) {
        (Some(_), _) => room.fitted(wanted, &plan),
        (None, Some(_)) => room.asked(wanted, &plan),
        (None, None) => room.usual(wanted),
    }
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

    fn narrowest(&self) -> KvTypes {
        self.types().last().copied().unwrap_or(self.options.kv)
    }

    /// Whether what `bytes` counts fits.
    fn fits(&self, kv: KvTypes, context: usize, bytes: fn(&MemoryPlan) -> u64) -> bool {
        self.plan(kv, context).is_some_and(|plan| bytes(&plan) <= self.budget)
    }

    /// The widest types with which what `bytes` counts fits.
    fn widest(&self, context: usize, bytes: fn(&MemoryPlan) -> u64) -> Option<KvTypes> {
        self.types().into_iter().find(|kv| self.fits(*kv, context, bytes))
    }

    /// Everything within the budget: narrower types, then a shorter context.
    fn fitted(&self, wanted: usize, plan: &MemoryPlan) -> Result<(Options, Vec<String>), EngineError> {
        if let Some(kv) = self.widest(wanted, MemoryPlan::total) {
            return Ok(self.narrowed(kv, wanted, plan));
        }
        let kv = self.narrowest();
        let context = largest(wanted, |context| self.fits(kv, context, MemoryPlan::total));
        let context = context.ok_or_else(|| self.nothing_fits(kv))?;
        let (options, mut said) = self.narrowed(kv, context, plan);
        let budget = self.budget >> 20;
        said.push(format!(
            "the context is {context} tokens instead of {wanted}, the most that fit {budget} MiB"
        ));
        Ok((options, said))
    }

    /// A context that was asked for, with narrower types if need be. Mapped weights are read again where there is no room for
    /// them.
    fn asked(&self, wanted: usize, plan: &MemoryPlan) -> Result<(Options, Vec<String>), EngineError> {
        let kv = self.widest(wanted, MemoryPlan::total).or_else(|| self.widest(wanted, MemoryPlan::resident));
        let kv = kv.ok_or_else(|| self.refusal(wanted, plan))?;
        Ok(self.narrowed(kv, wanted, plan))
    }

    /// The model's own context, shortened until cache and workspace take half of the memory.
    fn usual(&self, wanted: usize) -> Result<(Options, Vec<String>), EngineError> {
        let mut context = wanted;
        let fits =
            |context| self.plan(self.options.kv, context).map_or(0, |p| p.resident()) <= self.budget / 2;
        while context > TILE && !fits(context) {
            context /= 2;
        }
        let shortened =
            || format!("context shortened from {wanted} to {context} tokens to fit half the free memory");
        let said = (context < wanted).then(shortened).into_iter().collect();
        Ok((self.options(self.options.kv, context), said))
    }

    /// These types, and what there is to say of them. `plan` is that of the types that were asked for.
    fn narrowed(&self, kv: KvTypes, context: usize, plan: &MemoryPlan) -> (Options, Vec<String>) {
        let asked = self.options.kv;
        let (needed, budget) = (plan.total().div_ceil(1 << 20), self.budget >> 20);
        let place = self.place();
        let narrower = || {
            format!(
                "the KV cache is {kv} instead of {asked}, with which {needed} MiB are needed and {budget} MiB are {place}"
            )
        };
        (self.options(kv, context), (kv != asked).then(narrower).into_iter().collect())
    }

    fn refusal(&self, context: usize, plan: &MemoryPlan) -> EngineError {
        let kv = self.options.kv;
        let largest = match largest(context, |context| self.fits(kv, context, MemoryPlan::resident)) {
            Some(tokens) => format!("; {tokens} tokens would fit"),
            None => String::new(),
        };
        let (needed, mapped) = (plan.resident().div_ceil(1 << 20), plan.weights_mapped >> 20);
        let reason = format!(
            "{context} tokens with K {} and V {} need {needed} MiB beside {mapped} MiB of mapped weights, but {} MiB are \
             {}{largest}",
            kv.k,
            kv.v,
            self.budget >> 20,
            self.place(),
        );
        EngineError::Option { option: "context", reason }
    }

    /// Why not even one token fits.
    fn nothing_fits(&self, kv: KvTypes) -> EngineError {
        let plan = self.plan(kv, 1).unwrap_or_default();
        let weights = plan.weights_mapped + plan.weights_held + plan.weights_decoded;
        let reason = format!(
            "not even a context of one token fits: {} MiB are needed, {} MiB of them for weights, but {} MiB are {}",
            plan.total().div_ceil(1 << 20),
            weights >> 20,
            self.budget >> 20,
            self.place(),
        );
        EngineError::Option { option: "fit", reason }
    }

    /// What the budget is.
    fn place(&self) -> &'static str {
        if self.options.fit.is_some() { "allowed" } else { "free" }
    }
}

/// The largest context of at most `most` tokens that fits.
fn largest(most: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut below, mut above) = (0, most.min(MAX_CONTEXT) + 1);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if fits(middle) { below = middle } else { above = middle }
    }
    (below > 0).then_some(below)
}
