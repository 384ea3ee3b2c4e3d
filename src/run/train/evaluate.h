// Runs a data set forward.
#pragma once

#include <atomic>
#include <cstdint>

#include "paradyse/run/session.h"
#include "paradyse/run/train.h"
#include "src/plan/base/progress_hook.h"
#include "src/run/train/dataset.h"

namespace paradyse {

// In batches of about `tokens_per_batch`; every rank gets the result.  `planner`: rank 0's; the
// others take its plans.  `seed`: of what is drawn into samples, the same for an item each time.
// `per_document`: rank 0 has the loss of each.
EvalResult evaluate_data(
    const Dataset& data,
    std::uint64_t seed,
    std::int64_t tokens_per_batch,
    BatchPlanner* planner,
    RankSession& session,
    const std::atomic<bool>* stop,
    const ProgressHook& progress = {},
    bool per_document = false);

}  // namespace paradyse
