// The tensors of a checkpoint: a file for each rank of the weight domain that wrote it.
//
// A tensor is named master:, exp_avg: or exp_avg_sq:, then the weight and its rows,
// "exp_avg:model.layers.0.mlp.up_proj.weight[0:10]"; the file's metadata say of each weight and
// rows the shape of the whole and whether the rows are its columns.  So any number of ranks cuts
// anew what it needs from these files alone.  Matrices lie on one rank of the domain each; vectors,
// which all ranks have, in every file.
#pragma once

#include <atomic>
#include <filesystem>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/run/weights.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {

// A piece of a weight with the tensors that are written of it, of its sizes.
struct TrainedPiece {
  WeightPiece piece;
  at::Tensor master;
  at::Tensor mean;
  at::Tensor variance;
};
// All of this rank, where they lie.
std::vector<TrainedPiece> trained_pieces(const Parameters& parameters, const AdamW& optimizer);

// A copy of a rank's pieces, for which there is room from the beginning: where the optimizer's
// state is, counted as that is; of a rank with a GPU in host memory.
class Snapshot {
 public:
  // `on_host`: the state waits there (AdamW).  Throws OutOfMemory; std::runtime_error where the
  // host has no room.
  Snapshot(const Parameters& parameters, const AdamW& optimizer, bool on_host);
  // They are as they are now.
  void take();
  [[nodiscard]] const std::vector<TrainedPiece>& pieces() const { return copies_; }

 private:
  std::vector<TrainedPiece> sources_;
  std::vector<TrainedPiece> copies_;
};

// Pieces of this rank, into `file`; tensors are written from where they lie.  Throws
// std::runtime_error naming the file and the system's reason, and once `given_up` is true.
void write_pieces(
    const std::filesystem::path& file,
    int rank,
    int ranks,
    const std::vector<TrainedPiece>& pieces,
    const std::atomic<bool>* given_up = nullptr);

// Puts this rank's masters in place, whoever wrote the files, and with an `optimizer` their
// moments.  Copies nothing else.  Throws damaged() (checkpoint_state.h) where a row is in none of
// them, or of another shape or type.
void read_pieces(
    const std::vector<std::filesystem::path>& files, Parameters& parameters, AdamW* optimizer);

}  // namespace paradyse
