#pragma once

#include <charconv>
#include <string>
#include <vector>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

/** The CUDA devices that a text names: "cuda" is device 0, "cuda:2" device 2,
 * "cuda:0,1" both; "cpu" is none.
 *
 * Throws Error for anything else.
 */
inline std::vector<int> cuda_devices_of(const std::string& name) {
    if (name == "cpu") {
        return {};
    }
    if (name == "cuda") {
        return {0};
    }
    std::vector<int> devices;
    bool good = name.starts_with("cuda:");
    const char* const end = name.data() + name.size();
    for (const char* at = name.data() + 4; good && at != end;) {
        int device = 0;
        const auto [stop, error] = std::from_chars(at + 1, end, device);
        good = error == std::errc() && device >= 0 &&
                (stop == end || *stop == ',');
        devices.push_back(device);
        at = stop;
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            good && !devices.empty(),
            "device '%s' is neither cpu nor cuda nor cuda:N,...",
            name.c_str());
    return devices;
}

} // namespace faiss_flashgmm
