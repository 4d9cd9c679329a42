package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A stand-in for a GPU vendor's device plugin: devices that exist by name only, each with a NUMA node, so that the
// kubelet's Device Manager and Topology Manager treat the pods that ask for them as they would on a machine with GPUs.
type plugin struct {
	api.UnimplementedDevicePluginServer
	devices   []*api.Device
	envName   string
	unhealthy string
}

// state is what the kubelet should be told now: while the file `unhealthy` exists, device 0 is broken.
func (p *plugin) state() []*api.Device {
	now := make([]*api.Device, 0, len(p.devices))
	_, err := os.Stat(p.unhealthy)
	for i, device := range p.devices {
		health := api.Healthy
		if i == 0 && p.unhealthy != "" && err == nil {
			health = api.Unhealthy
		}
		now = append(now, &api.Device{ID: device.ID, Health: health, Topology: device.Topology})
	}
	return now
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	for sent := ""; ; {
		devices := p.state()
		if next := fmt.Sprint(devices); next != sent {
			if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			sent = next
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		env := map[string]string{p.envName: strings.Join(container.DevicesIds, ",")}
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{Envs: env})
	}
	return response, nil
}

func serveDevices() int {
	resource := flag.String("resource", "nvidia.com/gpu", "resource name to register")
	count := flag.Int("count", 1, "number of devices")
	numaNodes := flag.String("numa-nodes", "0", "NUMA node of each device, separated by commas; the last one for the rest")
	folder := flag.String("folder", api.DevicePluginPath, "the kubelet's folder for device plugins")
	envName := flag.String("env", "NVIDIA_VISIBLE_DEVICES", "variable that names the devices in the container")
	unhealthy := flag.String("unhealthy-file", "", "device 0 is unhealthy while this file exists")
	flag.Parse()

	nodes := strings.Split(*numaNodes, ",")
	devices := make([]*api.Device, *count)
	for i := range devices {
		node, err := strconv.ParseInt(nodes[min(i, len(nodes)-1)], 10, 64)
		if err != nil {
			log.Fatalf("-numa-nodes %s: %v", *numaNodes, err)
		}
		topology := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: node}}}
		devices[i] = &api.Device{ID: fmt.Sprintf("GPU-%d", i), Topology: topology}
	}
	const socket = "ballast-test.sock"
	if err := os.RemoveAll(filepath.Join(*folder, socket)); err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(*folder, socket))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &plugin{devices: devices, envName: *envName, unhealthy: *unhealthy})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()

	kubelet := "unix://" + filepath.Join(*folder, filepath.Base(api.KubeletSocket))
	connection, err := grpc.NewClient(kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	register := &api.RegisterRequest{Version: api.Version, Endpoint: socket, ResourceName: *resource}
	if _, err := api.NewRegistrationClient(connection).Register(ctx, register, grpc.WaitForReady(true)); err != nil {
		log.Fatal(err)
	}
	log.Printf("registered %d x %s on NUMA nodes %s", *count, *resource, *numaNodes)

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-ended:
		log.Print(err)
		return 1
	case <-stop:
		server.Stop()
		return 0
	}
}
