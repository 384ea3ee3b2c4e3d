// Samples with what is drawn for them: noise, and letters to predict.  Their inputs are rules.
#pragma once

#include <cstdint>

#include "paradyse/run/detail/sample.h"
#include "src/run/data/draw.h"
#include "src/run/data/grid_data.h"

namespace paradyse {

// Of an alignment's letters, those that are to be predicted.
inline constexpr double kPredictedShare = 0.15;

// Of clip `number`.  They keep what they need of clips and alignments.
Sample sample_of(const Clips& clips, std::int64_t number, Draw draw);
Sample sample_of(const Alignment& alignment, Draw draw);

}  // namespace paradyse
