// Runs a corpus forward.
#pragma once

#include <atomic>
#include <cstdint>

#include "paradyse/run/session.h"
#include "paradyse/run/train.h"

namespace paradyse {

// In batches of about `tokens_per_batch`; every rank gets the result.  `planner`: rank 0's; the
// others take its plans.
EvalResult evaluate_corpus(
    const Corpus& corpus,
    std::int64_t tokens_per_batch,
    BatchPlanner* planner,
    RankSession& session,
    const std::atomic<bool>* stop);

}  // namespace paradyse
