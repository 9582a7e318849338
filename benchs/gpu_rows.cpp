#include "gpu_rows.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/half.h>

namespace faiss_flashgmm {

namespace {

std::vector<float> clustered_rows(const GpuBenchOptions& o) {
    std::vector<float> x(o.n * o.d);
    const int64_t centres = std::max<int64_t>(1, o.k / 4);
    std::vector<float> centre(centres * o.d);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& v : centre) {
        v = normal(random);
    }
#pragma omp parallel
    {
        std::mt19937 own(1000 + omp_get_thread_num());
        std::normal_distribution<float> noise(0, 0.6f);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < o.n; i++) {
            const float* c = centre.data() + own() % centres * o.d;
            for (int64_t j = 0; j < o.d; j++) {
                x[i * o.d + j] = c[j] + noise(own);
            }
        }
    }
    return x;
}

std::vector<float> rows_of_file(GpuBenchOptions& o) {
    std::ifstream in(o.data, std::ios::binary);
    uint32_t header[2] = {};
    in.read(reinterpret_cast<char*>(header), sizeof(header));
    FLASHGMM_THROW_IF_NOT_FMT(in.good(), "cannot read %s", o.data.c_str());
    const bool bytes = o.data.find(".u8bin") != std::string::npos;
    const int64_t stored = header[0];
    o.d = header[1];
    std::vector<char> raw(stored * o.d * (bytes ? 1 : 2));
    in.read(raw.data(), std::streamsize(raw.size()));
    FLASHGMM_THROW_IF_NOT_FMT(
            in.good(), "%s is shorter than it says", o.data.c_str());
    std::vector<float> base(stored * o.d);
    double squared = 0;
    for (size_t i = 0; i < base.size(); i++) {
        uint16_t h;
        if (bytes) {
            base[i] = uint8_t(raw[i]);
        } else {
            std::memcpy(&h, raw.data() + 2 * i, 2);
            base[i] = half_to_float(h);
        }
        squared += double(base[i]) * base[i];
    }
    const float spread = float(std::sqrt(squared / double(base.size())));
    std::vector<float> x(o.n * o.d);
#pragma omp parallel
    {
        std::mt19937 own(2000 + omp_get_thread_num());
        std::normal_distribution<float> noise(0, 0.01f * spread);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < o.n; i++) {
            for (int64_t j = 0; j < o.d; j++) {
                x[i * o.d + j] = base[i % stored * o.d + j] +
                        (i >= stored ? noise(own) : 0.0f);
            }
        }
    }
    return x;
}

} // namespace

GpuBenchOptions parse(int argc, char** argv) {
    GpuBenchOptions o;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const char* value = argv[i + 1];
        if (name == "--n") {
            o.n = std::atoll(value);
        } else if (name == "--d") {
            o.d = std::atoll(value);
        } else if (name == "--k") {
            o.k = std::atoll(value);
        } else if (name == "--runs") {
            o.runs = std::atoi(value);
        } else if (name == "--warm-up") {
            o.warm_up = std::atoi(value);
        } else if (name == "--precision") {
            o.precision = value;
        } else if (name == "--unit") {
            o.unit = value;
        } else if (name == "--data") {
            o.data = value;
        } else if (name == "--json") {
            o.json = value;
        } else if (name == "--rows") {
            o.rows = value;
        } else if (name == "--min-responsibility") {
            o.min_responsibility = std::atof(value);
        } else if (name == "--check-rows") {
            o.check_rows = std::atoi(value);
        } else if (name == "--type") {
            o.type = value;
        } else if (name == "--devices") {
            o.devices = std::atoi(value);
        } else if (name == "--init") {
            o.init = value;
        } else if (name == "--stream") {
            o.stream = std::atoll(value);
        } else if (name == "--fit") {
            o.fit = std::atoi(value);
        } else if (name == "--deterministic") {
            o.deterministic = std::atoi(value) != 0;
        } else {
            FLASHGMM_THROW_FMT("unknown option %s", name.c_str());
        }
    }
    return o;
}

CudaOptions cuda_options(const GpuBenchOptions& o) {
    CudaOptions cuda;
    cuda.precision = o.precision == "fp32" ? CudaPrecision::fp32
            : o.precision == "reference"   ? CudaPrecision::reference
                                           : CudaPrecision::fp16;
    cuda.min_responsibility = o.min_responsibility;
    cuda.deterministic = o.deterministic;
    cuda.matrix_unit =
            o.unit == "mma" ? CudaMatrixUnit::mma : CudaMatrixUnit::automatic;
    cuda.devices.clear();
    for (int i = 0; i < o.devices; i++) {
        cuda.devices.push_back(i);
    }
    return cuda;
}

RowType row_type(const GpuBenchOptions& o) {
    for (const RowType type :
         {RowType::float32,
          RowType::float16,
          RowType::bfloat16,
          RowType::int8,
          RowType::uint8}) {
        if (o.type == name_of(type)) {
            return type;
        }
    }
    FLASHGMM_THROW_FMT("unknown row type %s", o.type.c_str());
}

std::vector<float> make_rows(GpuBenchOptions& o) {
    return o.data.empty() ? clustered_rows(o) : rows_of_file(o);
}

std::vector<std::byte> encode(std::vector<float>& x, RowType type) {
    const auto [low, high] = std::ranges::minmax_element(x);
    const float offset = *low;
    const float step = (*high - *low) / 255;
    const float first = type == RowType::int8 ? -128 : 0;
    std::vector<std::byte> bytes(x.size() * size_of(type));
#pragma omp parallel for
    for (size_t i = 0; i < x.size(); i++) {
        std::byte* to = bytes.data() + i * size_of(type);
        const auto store = [&](auto value) {
            std::memcpy(to, &value, sizeof(value));
        };
        if (type == RowType::float32) {
            store(x[i]);
        } else if (type == RowType::float16) {
            store(float_to_half(x[i]));
        } else if (type == RowType::bfloat16) {
            store(uint16_t(std::bit_cast<uint32_t>(x[i]) >> 16));
        } else {
            const float v = first + std::round((x[i] - offset) / step);
            type == RowType::int8 ? store(int8_t(v)) : store(uint8_t(v));
        }
        to_floats({to, type}, 1, &x[i]);
    }
    return bytes;
}

void write_line(const GpuBenchOptions& o, const std::string& line) {
    if (!o.json.empty()) {
        std::ofstream(o.json, std::ios::app) << line << '\n';
    }
}

} // namespace faiss_flashgmm
