// Holds a plan's loss and every gradient against the reference, and its counts against the folds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/gradients.h"
#include "paradyse/run/session.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/reference/text.h"
#include "tests/support/models.h"

namespace paradyse::test {

// A model and the lengths of a batch.  Random weights and documents are the same for a name.
struct Case {
  std::string name;
  TextShape model;
  std::vector<std::int64_t> lengths;
  bool labels = false;  // those of a causal model are not its tokens; a masked LM always has some
};

// Sizes that 2, 3 and 4 do not divide; documents of 1, 2 and 3 tokens; the last has attention
// dropout.
std::vector<Case> cases();

// The reference's answer, computed once for each name.  The model's dropout is on, if it has any.
const reference::Answer& reference_answer(const Case& c);

// What ranks counted is what the folds say: saved bytes, bytes and messages sent exactly, the peak
// within 2 %.
void expect_counts(const Plan& plan, const Model& model, Dtype dtype, const GradientAnswer& answer);

// Loss and gradients within `tolerance`; saved bytes, bytes and messages sent exactly, the peak
// within 2 %.  Judged in the process that leads.
void expect_equal(
    const Case& c,
    const Plan& plan,
    Dtype dtype,
    double tolerance,
    const std::shared_ptr<Backend>& backend = local_backend(),
    c10::Device device = c10::Device(c10::kCPU));

// The same in bfloat16 or float16, against float64 from the weights as the type rounds them,
// without dropout.  Each gradient is held to its own rounding: as far as rounding the weights once
// more moves it in float64, a few times, since every op rounds what it makes, too.
void expect_within_rounding(
    const Case& c,
    const Plan& plan,
    Dtype dtype,
    std::int64_t attention_dense_from = kAttentionDenseFrom,
    c10::Device device = c10::Device(c10::kCPU));

// The largest footprint that the folds name is a budget that suffices in float32, to the byte;
// less runs out of memory.
void expect_peak_is_a_budget(
    const TextShape& model,
    const Plan& plan,
    const std::vector<std::vector<std::int32_t>>& documents,
    const Weights& weights);

}  // namespace paradyse::test
