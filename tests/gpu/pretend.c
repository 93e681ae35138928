/* A CUDA that pretends: its memory is the host's, its kernels do nothing.

   ONNX Runtime's CUDA provider opens sessions on it and goes through the motions of running them,
   so that where nodes are placed, and what is copied, can be tested where there is no GPU. The
   results are garbage. One library stands for the runtime, the driver, cuBLAS, cuRAND and cuDNN. */

#include <stdlib.h>
#include <string.h>

/* copies to the device, copies back, kernels started: read by the tests */
int pretend_counts[3];

/* CUDA 13's properties of a device, as far as those that are read */
struct properties {
    char name[256], uuid[16], luid[8];
    unsigned mask;
    size_t memory, shared_per_block;
    int registers, warp;
    size_t pitch;
    int threads_per_block, block[3], grid[3];
    size_t constants;
    int major, minor;
    size_t alignment, pitch_alignment;
    int multiprocessors;
    char rest[1024 - 400];
};

int cudaGetDeviceProperties(struct properties *found, int device)
{
    memset(found, 0, 900); /* of about 1,000 bytes */
    strcpy(found->name, "Pretended GPU");
    found->memory = 80ul << 30;
    found->shared_per_block = 48 << 10;
    found->registers = 1 << 16;
    found->warp = 32;
    found->threads_per_block = found->block[0] = found->block[1] = 1024;
    found->block[2] = 64;
    found->grid[0] = 0x7fffffff;
    found->grid[1] = found->grid[2] = 0xffff;
    found->major = 9;
    found->multiprocessors = 132;
    return 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    switch (attribute) {
    case 1: *value = 1024; break;        /* threads of a block */
    case 8: *value = 48 << 10; break;    /* shared memory of a block */
    case 10: *value = 32; break;         /* threads of a warp */
    case 12: *value = 1 << 16; break;    /* registers of a block */
    case 16: *value = 132; break;        /* multiprocessors */
    case 39: *value = 2048; break;       /* threads of a multiprocessor */
    case 75: *value = 9; break;          /* compute capability */
    case 76: *value = 0; break;
    case 81: *value = 228 << 10; break;  /* shared memory of a multiprocessor */
    case 97: *value = 227 << 10; break;  /* shared memory of a block that asks for it */
    default: *value = 1;
    }
    return 0;
}

static int take(void **memory, size_t size)
{
    *memory = calloc(1, size + 256);
    return *memory ? 0 : 2;
}

int cudaMalloc(void **memory, size_t size) { return take(memory, size); }
int cudaMallocHost(void **memory, size_t size) { return take(memory, size); }
int cudaHostAlloc(void **memory, size_t size, unsigned flags) { return take(memory, size); }
int cudaMallocFromPoolAsync(void **memory, size_t size) { return take(memory, size); }
int cudaFree(void *memory) { free(memory); return 0; }
int cudaFreeAsync(void *memory) { free(memory); return 0; }
int cudaFreeHost(void *memory) { free(memory); return 0; }

int cudaMemGetInfo(size_t *free, size_t *total)
{
    *free = 70ul << 30;
    *total = 80ul << 30;
    return 0;
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream)
{
    pretend_counts[0] += kind == 1;
    pretend_counts[1] += kind == 2;
    memcpy(to, from, size);
    return 0;
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
    return cudaMemcpyAsync(to, from, size, kind, 0);
}

int cudaMemset(void *at, int value, size_t size) { memset(at, value, size); return 0; }
int cudaMemsetAsync(void *at, int value, size_t size) { memset(at, value, size); return 0; }

int cudaPointerGetAttributes(int *found, void *memory)
{
    memset(found, 0, 24);
    found[0] = 2; /* the device's memory */
    memcpy(found + 2, &memory, sizeof memory);
    return 0;
}

static int started(void) { pretend_counts[2]++; return 0; }

int __cudaLaunchKernel(void) { return started(); }
int cudaLaunchKernel(void) { return started(); }
int cudaLaunchKernelExC(void) { return started(); }
int cudaLaunchCooperativeKernel(void) { return started(); }
int cudaLaunchHostFunc(void *stream, void (*call)(void *), void *with) { call(with); return 0; }

int __cudaGetKernel(void **kernel, const void *function) { *kernel = (void *)function; return 0; }
void *__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
int cudaFuncGetAttributes(void *found, const void *kernel) { memset(found, 0, 64); return 0; }
int cudaStreamIsCapturing(void *stream, int *is) { *is = 0; return 0; }
int cudaStreamEndCapture(void *stream, void **graph) { return take(graph, 8); }
int cudaGetDriverEntryPointByVersion(const char *name, void **found) { *found = 0; return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *most) { *most = 2; return 0; }
int cublasLtMatmulAlgoGetHeuristic(void) { return 15; /* there is none */ }
int cuDeviceGetName(char *name, int size) { strncpy(name, "Pretended GPU", size); return 0; }
int cuDeviceGetUuid(char *uuid) { memset(uuid, 7, 16); return 0; }
size_t cudnnGetVersion(void) { return 91000; }

#define NUMBER(function, value) int function(int *found) { *found = value; return 0; }
NUMBER(cudaGetDevice, 0) NUMBER(cudaGetDeviceCount, 1) NUMBER(cuDeviceGetCount, 1)
NUMBER(cuDeviceGet, 0) NUMBER(cudaRuntimeGetVersion, 13000)
NUMBER(cudaEventElapsedTime, 0)

static int driver(int *version)
{
    const char *other = getenv("PRETEND_CUDA"); /* as the driver writes it: 12020 */
    *version = other ? atoi(other) : 13000;
    return 0;
}

int cudaDriverGetVersion(int *version) { return driver(version); }
int cuDriverGetVersion(int *version) { return driver(version); }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return cudaDeviceGetAttribute(value, attribute, device);
}

#define HANDLE(function) int function(void **made) { return take(made, 64); }
HANDLE(cudaEventCreate) HANDLE(cudaEventCreateWithFlags) HANDLE(cudaStreamCreate)
HANDLE(cudaStreamCreateWithFlags) HANDLE(cudaGraphInstantiate) HANDLE(cudaLibraryGetKernel)
HANDLE(cudaLibraryLoadData) HANDLE(cudaMemPoolCreate) HANDLE(cublasCreate_v2)
HANDLE(cublasLtCreate) HANDLE(cublasLtMatmulDescCreate) HANDLE(cublasLtMatmulPreferenceCreate)
HANDLE(cublasLtMatrixLayoutCreate) HANDLE(cublasLtMatrixTransformDescCreate) HANDLE(cudnnCreate)
HANDLE(cudnnCreateReduceTensorDescriptor) HANDLE(cudnnCreateTensorDescriptor)

#define TEXT(function) const char *function(int code) { return "pretended"; }
TEXT(cudaGetErrorName) TEXT(cudaGetErrorString) TEXT(cublasGetStatusName)
TEXT(cublasGetStatusString) TEXT(cudnnGetErrorString)

#define NOTHING(function) int function(void) { return 0; }
NOTHING(__cudaPopCallConfiguration) NOTHING(__cudaPushCallConfiguration)
NOTHING(__cudaRegisterFatBinaryEnd) NOTHING(__cudaRegisterFunction) NOTHING(__cudaRegisterVar)
NOTHING(__cudaUnregisterFatBinary) NOTHING(cuInit) NOTHING(cuTensorMapEncodeTiled)
NOTHING(cudaDeviceSynchronize) NOTHING(cudaEventDestroy) NOTHING(cudaEventRecord)
NOTHING(cudaEventRecordWithFlags) NOTHING(cudaEventSynchronize) NOTHING(cudaFuncSetAttribute)
NOTHING(cudaGetLastError) NOTHING(cudaGraphDestroy) NOTHING(cudaGraphExecDestroy)
NOTHING(cudaGraphLaunch) NOTHING(cudaKernelSetAttributeForDevice) NOTHING(cudaLibraryUnload)
NOTHING(cudaMemPoolDestroy) NOTHING(cudaMemPoolGetAttribute) NOTHING(cudaMemPoolSetAttribute)
NOTHING(cudaMemPoolTrimTo) NOTHING(cudaMemcpy2DAsync) NOTHING(cudaMemcpyFromSymbol)
NOTHING(cudaPeekAtLastError) NOTHING(cudaSetDevice) NOTHING(cudaStreamBeginCapture)
NOTHING(cudaStreamDestroy) NOTHING(cudaStreamSynchronize) NOTHING(cudaStreamWaitEvent)
NOTHING(cublasDestroy_v2) NOTHING(cublasDgeam) NOTHING(cublasDgemmBatched)
NOTHING(cublasDgemmStridedBatched) NOTHING(cublasDgemm_v2) NOTHING(cublasDgetrfBatched)
NOTHING(cublasDgetriBatched) NOTHING(cublasGemmBatchedEx) NOTHING(cublasGemmEx)
NOTHING(cublasGemmStridedBatchedEx) NOTHING(cublasGetMathMode) NOTHING(cublasLtDestroy)
NOTHING(cublasLtMatmul) NOTHING(cublasLtMatmulAlgoConfigSetAttribute)
NOTHING(cublasLtMatmulAlgoInit) NOTHING(cublasLtMatmulDescDestroy)
NOTHING(cublasLtMatmulDescSetAttribute) NOTHING(cublasLtMatmulPreferenceDestroy)
NOTHING(cublasLtMatmulPreferenceSetAttribute) NOTHING(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatrixLayoutSetAttribute) NOTHING(cublasLtMatrixTransform)
NOTHING(cublasLtMatrixTransformDescDestroy) NOTHING(cublasScopy_v2) NOTHING(cublasSetMathMode)
NOTHING(cublasSetStream_v2) NOTHING(cublasSgeam) NOTHING(cublasSgemmBatched)
NOTHING(cublasSgemmStridedBatched) NOTHING(cublasSgemm_v2) NOTHING(cublasSgetrfBatched)
NOTHING(cublasSgetriBatched) NOTHING(cublasSscal_v2) NOTHING(cudnnDestroy)
NOTHING(cudnnSetStream) NOTHING(cudnnGetStream) NOTHING(cudnnReduceTensor)
NOTHING(cudnnSetTensorNdDescriptor) NOTHING(cudnnSetReduceTensorDescriptor)
NOTHING(cudnnDestroyTensorDescriptor) NOTHING(cudnnDestroyReduceTensorDescriptor)
NOTHING(cudnnGetReductionWorkspaceSize) NOTHING(cudnnGetReductionIndicesSize)
NOTHING(cudnnGetTensorNdDescriptor)
