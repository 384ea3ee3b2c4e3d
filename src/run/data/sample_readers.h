// The readers of files of samples: one row, and one folder, a family.
#pragma once

#include <string>

#include "paradyse/run/sample_file.h"

namespace paradyse {

SampleReader clip_reader();       // stdit/
SampleReader alignment_reader();  // evoformer/

// Null: nobody reads files for models of this family.
const SampleReader* sample_reader(const std::string& family);

}  // namespace paradyse
