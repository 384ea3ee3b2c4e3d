// Samples of a model of several dims on the ranks of a group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/plan/model.h"
#include "paradyse/plan/program.h"

namespace paradyse {

// `batch` samples (or documents) of these dims on so many ranks, which have one axis, or the two of
// `mesh`.  Throws std::invalid_argument for a dim that is missing or not the model's, a mesh whose
// product is not `ranks`, and a mesh of documents, which have one dim.
Documents samples_of(
    const Model& model,
    const DimSizes& dims,
    std::int64_t batch,
    int ranks,
    const std::vector<int>& mesh);

// Dims that the sizes of a sample say, in the order of the model's streams: all but the batch's,
// and i and j, which number pairs of residues.
std::vector<std::string> given_dims(const Model& model);
// The same sizes with those of i and j, where the model has them and they are not given.
DimSizes with_pairs(const Model& model, DimSizes given);

}  // namespace paradyse
