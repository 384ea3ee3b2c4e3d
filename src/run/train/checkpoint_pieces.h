// The tensors of a checkpoint: a file for each rank of the weight domain that wrote it.
//
// A tensor is named master:, exp_avg: or exp_avg_sq:, then the weight and its rows,
// "exp_avg:model.layers.0.mlp.up_proj.weight[0:10]"; the file's metadata say of each weight and
// rows the shape of the whole and whether the rows are its columns.  So any number of ranks cuts
// anew what it needs from these files alone.  Matrices lie on one rank of the domain each; vectors,
// which all ranks have, in every file.
#pragma once

#include <filesystem>
#include <vector>

#include "paradyse/run/weights.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {

// This rank's, into `file`; tensors are written from where they lie.  Throws std::runtime_error
// naming the file and the system's reason.
void write_pieces(
    const std::filesystem::path& file,
    int rank,
    int ranks,
    const Parameters& parameters,
    const AdamW& optimizer);

// Puts this rank's masters in place, whoever wrote the files, and with an `optimizer` their
// moments.  Copies nothing else.  Throws damaged() (checkpoint_state.h) where a row is in none of
// them, or of another shape or type.
void read_pieces(
    const std::vector<std::filesystem::path>& files, Parameters& parameters, AdamW* optimizer);

}  // namespace paradyse
