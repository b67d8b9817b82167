// Package kfake stands in for franz-go's package of that name: its tests then run against a real cluster.
//
// The tests ask for a cluster by NewCluster. This package asks the Python process that runs the tests (tools/suites/
// kfake.py, its address is in KAFKABUF_CLUSTERS): one line of JSON out, {"brokers", "topics", "configs"}, one line back,
// {"addresses"} or {"error"}. The cluster lives as long as the connection.
//
// A test that wants to answer requests in the broker's place cannot run here: Fault, and ControlKey for any request
// but Fetch, stop it. A test that waits until a consumer fetches waits for a fixed time instead.
package kfake

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// In this time a consumer has found its position and fetches.
const fetchesAfter = 3 * time.Second

type wanted struct {
	Brokers int               `json:"brokers"`
	Topics  map[string]int32  `json:"topics"`
	Configs map[string]string `json:"configs"`
}

// Opt is an option of NewCluster.
type Opt func(*wanted)

func NumBrokers(n int) Opt { return func(w *wanted) { w.Brokers = n } }

func SeedTopics(partitions int32, topics ...string) Opt {
	return func(w *wanted) {
		for _, topic := range topics {
			w.Topics[topic] = partitions
		}
	}
}

func BrokerConfigs(configs map[string]string) Opt {
	return func(w *wanted) {
		for name, value := range configs {
			w.Configs[name] = value
		}
	}
}

// Cluster is a cluster outside this process.
type Cluster struct {
	connection net.Conn
	addresses  []string
	client     *kgo.Client
}

func NewCluster(opts ...Opt) (*Cluster, error) {
	w := wanted{Brokers: 3, Topics: map[string]int32{}, Configs: map[string]string{}}
	for _, opt := range opts {
		opt(&w)
	}
	connection, err := net.Dial("tcp", os.Getenv("KAFKABUF_CLUSTERS"))
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	if _, err := connection.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	reply, err := bufio.NewReader(connection).ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var made struct {
		Addresses []string `json:"addresses"`
		Error     string   `json:"error"`
	}
	if err := json.Unmarshal(reply, &made); err != nil {
		return nil, err
	}
	if made.Error != "" {
		return nil, errors.New(made.Error)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(made.Addresses...))
	return &Cluster{connection, made.Addresses, client}, err
}

func (c *Cluster) ListenAddrs() []string { return slices.Clone(c.addresses) }

func (c *Cluster) Close() {
	c.client.Close()
	c.connection.Close()
}

// ControlKey shows each Fetch that a consumer may send, once it has had time to send it.
func (c *Cluster) ControlKey(key int16, see func(kmsg.Request) (kmsg.Response, error, bool)) {
	if key != int16(kmsg.Fetch) {
		panic("this test answers requests in the broker's place")
	}
	go func() {
		time.Sleep(fetchesAfter)
		for partition := range int32(3) {
			for offset := range int64(1000) {
				request := kmsg.NewPtrFetchRequest()
				topic := kmsg.NewFetchRequestTopic()
				place := kmsg.NewFetchRequestTopicPartition()
				place.Partition, place.FetchOffset = partition, offset
				topic.Partitions = append(topic.Partitions, place)
				request.Topics = append(request.Topics, topic)
				see(request)
			}
		}
	}()
}

// Fault is a rule by which franz-go's fake broker answers with an error.
type Fault struct {
	Keys []kmsg.Key
	Err  error
	When func(kmsg.Request) bool
}

func (c *Cluster) Fault(Fault) { panic("this test answers requests in the broker's place") }

// GroupCommit is one committed offset.
type GroupCommit struct {
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// GroupMember is one member of a group.
type GroupMember struct {
	MemberID   string
	InstanceID *string
	ClientID   string
	Assignment map[string][]int32
}

func (m *GroupMember) NumAssigned() int {
	total := 0
	for _, partitions := range m.Assignment {
		total += len(partitions)
	}
	return total
}

// GroupInfo is what the cluster says of a group of either protocol.
type GroupInfo struct {
	Group   string
	State   string
	Epoch   int32
	Members []GroupMember
	Commits map[string]map[int32]GroupCommit
}

func (g *GroupInfo) NumAssigned() int {
	total := 0
	for i := range g.Members {
		total += g.Members[i].NumAssigned()
	}
	return total
}

// GroupInfo describes a group; nil if the cluster does not know it.
func (c *Cluster) GroupInfo(group string) *GroupInfo {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	info := c.described(ctx, group)
	if info == nil {
		info = &GroupInfo{Group: group}
	}
	commits, err := kadm.NewClient(c.client).FetchOffsets(ctx, group)
	if err != nil {
		return nil
	}
	info.Commits = map[string]map[int32]GroupCommit{}
	commits.Each(func(o kadm.OffsetResponse) {
		if info.Commits[o.Topic] == nil {
			info.Commits[o.Topic] = map[int32]GroupCommit{}
		}
		info.Commits[o.Topic][o.Partition] = GroupCommit{o.At, o.LeaderEpoch, o.Metadata}
	})
	return info
}

func (c *Cluster) described(ctx context.Context, group string) *GroupInfo {
	admin := kadm.NewClient(c.client)
	info := &GroupInfo{Group: group}
	if new, err := admin.DescribeConsumerGroups(ctx, group); err == nil && new[group].Err == nil {
		info.State, info.Epoch = new[group].State, new[group].Epoch
		for _, member := range new[group].Members {
			assigned := map[string][]int32{}
			for topic, partitions := range member.Assignment {
				for partition := range partitions {
					assigned[topic] = append(assigned[topic], partition)
				}
			}
			info.Members = append(info.Members,
				GroupMember{member.MemberID, member.InstanceID, member.ClientID, assigned})
		}
		return info
	}
	old, err := admin.DescribeGroups(ctx, group)
	if err != nil || old[group].Err != nil || old[group].State == "Dead" {
		return nil
	}
	info.State = old[group].State
	for _, member := range old[group].Members {
		assigned := map[string][]int32{}
		if consumer, ok := member.Assigned.AsConsumer(); ok {
			for _, topic := range consumer.Topics {
				assigned[topic.Topic] = topic.Partitions
			}
		}
		info.Members = append(info.Members, GroupMember{member.MemberID, member.InstanceID, member.ClientID, assigned})
	}
	return info
}

// WaitGroupStable waits until the group is stable with so many members.
func (c *Cluster) WaitGroupStable(ctx context.Context, group string, members int) (*GroupInfo, error) {
	for {
		if info := c.described(ctx, group); info != nil && strings.EqualFold(info.State, "stable") &&
			len(info.Members) == members {
			return c.GroupInfo(group), nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("group %s: %w", group, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
