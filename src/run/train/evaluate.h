// Runs a corpus forward.
#pragma once

#include <atomic>
#include <cstdint>

#include "paradyse/run/play.h"
#include "paradyse/run/train.h"

namespace paradyse {

// In batches of about `tokens_per_batch`; every rank gets the result.  `planner`: rank 0's; the
// others take its plans.
EvalResult evaluate_corpus(
    const Corpus& corpus,
    std::int64_t tokens_per_batch,
    Planner* planner,
    const RankResources& rank,
    Parameters& parameters,
    const std::atomic<bool>* stop);

}  // namespace paradyse
