// One rank of a training run, from its weights to its last checkpoint.
#pragma once

#include "paradyse/run/communicator.h"
#include "src/run/train/training_run.h"

namespace paradyse {

// Every rank calls it.  Throws NotFinite when a bad step (BadStep) ends the run, after the weights
// and a checkpoint from before that step were saved; OutOfMemory; what is wrong with files.
void train_rank(const TrainingRun& run, Communicators& communicators);

}  // namespace paradyse
